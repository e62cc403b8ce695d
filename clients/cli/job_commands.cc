// SPDX-License-Identifier: Apache-2.0
// submit, list, get, watch, cancel.
#include <fmt/format.h>

#include <atomic>
#include <iostream>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/job_view.h"
#include "clients/cluster/job_file.h"
#include "clients/cluster/progress.h"
#include "clients/cluster/terminal.h"
#include "core/base/clock.h"
#include "core/runtime/shutdown.h"
#include "services/rpc/status_convert.h"

namespace titan::cli {
namespace {

void PrintWarnings(const google::protobuf::RepeatedPtrField<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::cerr << "warning: " << cluster::Printable(warning) << "\n";
  }
}

using Json = nlohmann::ordered_json;
using orchestrator::v1::Job;

std::string ComeBack(const Common& common, const std::string& job_id) {
  return "titanctl watch " + job_id +
         (common.address.empty() ? " --data " + cluster::ShellWord(common.data)
                                 : " --address " + cluster::ShellWord(common.address));
}

// `signal` is made before the first thread of the client, so that Ctrl-C always reaches it.
int WatchUntilItEnds(const Common& common, runtime::ShutdownSignal& signal,
                     cluster::JobClient& client, const std::string& job_id) {
  std::atomic<bool> detached = false;
  std::jthread detacher([&] {
    signal.Wait().IgnoreError();  // why does not matter here
    detached = true;
    client.StopWatching();
  });
  cluster::JobProgress progress(cluster::Terminal::Stdout());
  const auto job = client.Watch(job_id, 0, [&](const orchestrator::v1::WatchJobResponse& event) {
    if (common.json) {
      std::cout << rpc::ToJsonText(event, true, -1) << std::endl;
    } else {
      std::cout << progress.OnEvent(event) << std::flush;
    }
  });
  const bool left = detached;
  signal.Request(OkStatus());  // lets the detacher go
  if (!job.ok()) {
    if (left) {
      std::cerr << "\ndetached; the job goes on. Come back with: " << ComeBack(common, job_id)
                << std::endl;
      return kExitDetached;
    }
    return Fail(job.status());
  }
  if (!common.json) std::cout << progress.Summary() << std::flush;
  return ExitCodeOf(*job);
}

// Problems that the orchestrator found, each with its place in the job file.
Status WithPlaces(const Status& status, const rpc::ConfigOrigins& origins) {
  const auto info = rpc::ErrorInfoOf(status);
  if (!info.has_value() || info->fields().empty()) return status;
  rpc::ConfigProblems problems;
  for (const auto& field : info->fields()) problems.push_back({field.path(), field.description()});
  return rpc::ProblemsToStatus(problems, origins);
}

std::string Mib(uint64_t bytes) {
  if (bytes < 1u << 20) return fmt::format("{} KiB", (bytes + 1023) >> 10);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1u << 20));
}

// --check and --print_config: what the orchestrator makes of the job.
int CheckOnly(const Common& common, const SubmitOptions& options, const cluster::JobFile& file,
              cluster::JobClient& client) {
  const auto check = client.CheckJob(file.spec);
  if (!check.ok()) return Fail(check.status());
  if (!check->problems().empty()) {
    rpc::ConfigProblems problems;
    for (const auto& field : check->problems()) {
      problems.push_back({field.path(), field.description()});
    }
    return Fail(rpc::ProblemsToStatus(problems, file.origins));
  }
  PrintWarnings(check->warnings());
  if (options.print_config) {
    std::cout << rpc::PrintConfig(check->resolved(), file.origins) << std::flush;
    return kExitOk;
  }
  if (common.json) {
    std::cout << rpc::ToJsonText(*check) << std::endl;
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"data", fmt::format("{} rows, the longest prompt has {} tokens", check->data_rows(),
                           check->prompt_tokens_max())},
      {"journal",
       fmt::format("about {} a step, {} at most in all; {} are free",
                   Mib(check->journal_bytes_per_step()),
                   Mib(check->journal_bytes_per_step() * check->resolved().schedule().steps()),
                   Mib(check->disk_available_bytes()))}};
  for (const auto& need : check->memory()) {
    rows.push_back(
        {"memory", fmt::format("{} {}: {}", need.holder(), Mib(need.bytes()), need.what())});
  }
  rows.push_back({"memory", Mib(check->memory_available_bytes()) + " are free now"});
  std::cout << "the job is valid\n" << cluster::FormatTable(rows) << std::flush;
  return kExitOk;
}

}  // namespace

int Submit(const Common& common, const SubmitOptions& options) {
  std::optional<runtime::ShutdownSignal> signal;
  if (options.watch) signal.emplace(kSecondSignal);
  const auto file = cluster::ReadJobFile(options.file, options.set);
  if (!file.ok()) {
    Fail(file.status());
    return kExitUsage;
  }
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  if (options.check || options.print_config) return CheckOnly(common, options, *file, **client);
  const auto response = (*client)->Submit(file->spec);
  if (!response.ok()) return Fail(WithPlaces(response.status(), file->origins));
  PrintWarnings(response->warnings());
  if (options.watch) {
    if (!common.json) std::cout << response->job_id() << std::endl;
    return WatchUntilItEnds(common, *signal, **client, response->job_id());
  }
  if (common.json) {
    std::cout << rpc::ToJsonText(*response) << std::endl;
    return kExitOk;
  }
  std::cout << response->job_id() << std::endl;
  if (response->journal_bytes_per_step() > 0) {
    std::cerr << "the journal grows by about " << Mib(response->journal_bytes_per_step())
              << " a step\n";
  }
  std::cerr << "watch it with: " << ComeBack(common, response->job_id()) << std::endl;
  return kExitOk;
}

int ListJobs(const Common& common) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto jobs = (*client)->ListJobs();
  if (!jobs.ok()) return Fail(jobs.status());
  if (common.json) {
    Json out;
    out["jobs"] = Json::array();
    for (const Job& job : jobs->jobs()) {
      out["jobs"].push_back(Json::parse(rpc::ToJsonText(job), nullptr, false));
    }
    std::cout << out.dump(2) << std::endl;
    return kExitOk;
  }
  std::cout << FormatJobs(*jobs, SystemClock().UnixMs(), cluster::Terminal::Stdout()) << std::flush;
  return kExitOk;
}

int GetJob(const Common& common, const std::string& job_id) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto job = (*client)->Get(job_id);
  if (!job.ok()) return Fail(job.status());
  if (common.json) {
    std::cout << rpc::ToJsonText(*job) << std::endl;
    return kExitOk;
  }
  std::cout << FormatJob(*job, SystemClock().UnixMs(), cluster::Terminal::Stdout()) << std::flush;
  return kExitOk;
}

int Watch(const Common& common, const std::string& job_id) {
  runtime::ShutdownSignal signal(kSecondSignal);
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  return WatchUntilItEnds(common, signal, **client, job_id);
}

int Cancel(const Common& common, const std::string& job_id, const std::string& reason) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto before = (*client)->Get(job_id);
  if (!before.ok()) return Fail(before.status());
  const auto job = (*client)->Cancel(job_id, reason);
  if (!job.ok()) return Fail(job.status());
  if (common.json) {
    std::cout << rpc::ToJsonText(*job) << std::endl;
    return kExitOk;
  }
  // It may also have ended in between, otherwise than by this.
  const bool ended_before = cluster::IsFinal(before->state()) ||
                            job->state() == orchestrator::v1::JOB_STATE_SUCCEEDED ||
                            job->state() == orchestrator::v1::JOB_STATE_FAILED;
  std::cout << "job " << job->job_id() << (ended_before ? " had ended already: " : ": ")
            << cluster::NameOf(job->state()) << std::endl;
  return kExitOk;
}

}  // namespace titan::cli
