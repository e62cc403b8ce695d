// SPDX-License-Identifier: Apache-2.0
// report: gathers what the report shows and writes the file.
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/report.h"
#include "core/base/clock.h"
#include "core/runtime/files.h"

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

constexpr uint32_t kGroupsToShow = 64;

// The steps and evaluations so far.
Status ReadHistory(cluster::JobClient& client, ReportInput* input) {
  const bool ended = cluster::IsFinal(input->job.state());
  if (!ended && input->job.steps_done() == 0) return OkStatus();
  const uint64_t wanted = input->job.steps_done();
  const auto watched = client.Watch(input->job.job_id(), 0, [&](const WatchJobResponse& event) {
    if (event.has_step_done()) input->steps.push_back(event.step_done());
    if (event.has_evaluation_done()) input->evaluations.push_back(event.evaluation_done());
    // A job that lives goes on talking; what it had done is enough.
    if (!ended && input->steps.size() >= wanted) client.StopWatching();
  });
  if (watched.ok() || (!ended && watched.status().code() == StatusCode::kCancelled)) {
    return OkStatus();
  }
  return watched.status();
}

Status ReadGroups(cluster::JobClient& client, const std::string& job_id, uint64_t step,
                  std::vector<ListRolloutsResponse>* groups) {
  ListRolloutsRequest request;
  request.set_job_id(job_id);
  request.set_step(step);
  request.set_without_tokens(true);
  request.set_max_groups(kGroupsToShow);
  const Status status = client.ListRollouts(request, [&](const ListRolloutsResponse& group) {
    if (!groups->empty() && groups->back().group_id() == group.group_id()) {
      groups->back().mutable_samples()->MergeFrom(group.samples());
    } else {
      groups->push_back(group);
    }
    return true;
  });
  return status.code() == StatusCode::kNotFound ? OkStatus() : status;
}

// Can a file be written there? Asked before anything is gathered.
Status CheckOutFile(const std::string& file, const std::string& job_id) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(file, error)) {
    return InvalidArgument("--out '" + file + "' is a folder; name a file, for example --out " +
                           (fs::path(file) / (job_id + ".html")).string());
  }
  const fs::path parent = fs::path(file).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_directory(folder, error)) {
    return InvalidArgument("--out '" + file + "': the folder '" + folder +
                           "' does not exist; make it, or name another file");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return InvalidArgument("--out '" + file + "': the folder '" + folder +
                           "' is not writable; name a file in another one");
  }
  return OkStatus();
}

}  // namespace

int Report(const Common& common, const std::string& job_id, const ReportOptions& options) {
  const std::string file = options.file.empty() ? job_id + ".html" : options.file;
  if (const Status usable = CheckOutFile(file, job_id); !usable.ok()) return Fail(usable);
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto job = (*client)->Get(job_id);
  if (!job.ok()) return Fail(job.status());
  ReportInput input;
  input.job = *job;
  input.made_unix_ms = SystemClock().UnixMs();
  if (const Status read = ReadHistory(**client, &input); !read.ok()) return Fail(read);
  if (!input.steps.empty()) {
    const uint64_t last = input.steps.back().step();
    if (const Status read = ReadGroups(**client, job_id, 0, &input.first); !read.ok()) {
      return Fail(read);
    }
    if (last > 0) {
      if (const Status read = ReadGroups(**client, job_id, last, &input.last); !read.ok()) {
        return Fail(read);
      }
    }
  }
  const std::string html = ReportHtml(input);
  const Status written = runtime::WriteFileAtomically(file, html);
  if (!written.ok()) return Fail(written);
  if (common.json) {
    nlohmann::ordered_json out;
    out["file"] = file;
    out["bytes"] = html.size();
    out["steps"] = input.steps.size();
    std::cout << out.dump(2) << std::endl;
  } else {
    std::cout << "report of " << job_id << " with " << input.steps.size() << " steps: " << file
              << std::endl;
  }
  return kExitOk;
}

}  // namespace titan::cli
