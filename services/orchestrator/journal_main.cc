// SPDX-License-Identifier: Apache-2.0
//
// titan-journal: reads the journal of an orchestrator that is not running. Without --job it lists
// the jobs; with it, it prints the canonical form of the job's facts, which is equal for two runs
// of the same job, or with --times every fact in order with its time.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include "core/base/exit_codes.h"
#include "orchestrator/canonical.h"
#include "services/orchestrator/daemon.h"

namespace titan::orchestrator {
namespace {

Status Print(const std::string& data_folder, const std::string& job_id, bool times) {
  // Opening makes what is not there; this program only reads.
  if (!std::filesystem::exists(data_folder + "/journal/CURRENT")) {
    return InvalidArgument("there is no journal in '" + data_folder +
                           "'; --data_folder wants the orchestrator's folder: that of a cluster, "
                           "then /orchestrator");
  }
  TITAN_ASSIGN_OR_RETURN(const auto journal, OpenJournal(data_folder));
  if (job_id.empty()) {
    TITAN_ASSIGN_OR_RETURN(const auto jobs, journal->ReadJobs());
    for (const JournaledJob& job : jobs) {
      std::cout << job.info.job_id << " " << NameOf(job.info.state) << " steps "
                << job.info.steps_done << " " << job.info.spec->name << "\n";
    }
    return OkStatus();
  }
  if (times) {
    TITAN_ASSIGN_OR_RETURN(const auto facts, journal->ReadFacts(job_id, /*with_tokens=*/true));
    for (const Fact& fact : facts) {
      std::cout << UnixMs(fact.at) << " " << CanonicalLine(fact) << "\n";
    }
    return OkStatus();
  }
  TITAN_ASSIGN_OR_RETURN(const auto lines, journal->ReadCanonical(job_id));
  for (const std::string& line : lines) std::cout << line << "\n";
  return OkStatus();
}

}  // namespace
}  // namespace titan::orchestrator

int main(int argc, char** argv) {
  CLI::App app("Reads the journal of an orchestrator that is not running", "titan-journal");
  std::string data_folder, job_id;
  bool times = false;
  app.add_option("--data_folder", data_folder, "The orchestrator's data folder")->required();
  app.add_option("--job", job_id, "Job id; without it the jobs are listed");
  app.add_flag("--times", times,
               "Every fact in order with its time, instead of the canonical form");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? titan::kExitOk : titan::kExitUsage;
  }
  const titan::Status status = titan::orchestrator::Print(data_folder, job_id, times);
  if (status.ok()) return 0;
  std::cerr << "titan-journal: " << titan::MessageOf(status) << std::endl;
  return status.code() == titan::StatusCode::kInvalidArgument ? titan::kExitUsage
                                                              : titan::ExitCodeOfEnd(status);
}
