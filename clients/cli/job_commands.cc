// SPDX-License-Identifier: Apache-2.0
// submit, watch, cancel.
#include <fmt/format.h>

#include <atomic>
#include <iostream>
#include <optional>
#include <thread>

#include "clients/cli/commands.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/progress.h"
#include "clients/cluster/terminal.h"
#include "core/runtime/shutdown.h"

namespace titan::cli {
namespace {

using orchestrator::v1::Job;

StatusOr<std::unique_ptr<cluster::JobClient>> ConnectTo(const Common& common) {
  TITAN_ASSIGN_OR_RETURN(const std::string address, OrchestratorOf(common));
  return cluster::JobClient::Connect(address);
}

int ExitCodeOf(const Job& job) {
  switch (job.state()) {
    case orchestrator::v1::JOB_STATE_SUCCEEDED:
      return kExitOk;
    case orchestrator::v1::JOB_STATE_CANCELLED:
      return kExitJobCancelled;
    default:
      return kExitJobFailed;
  }
}

std::string ComeBack(const Common& common, const std::string& job_id) {
  return "titanctl watch " + job_id +
         (common.address.empty() ? " --data " + common.data : " --address " + common.address);
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
    std::cout << progress.OnEvent(event) << std::flush;
  });
  const bool left = detached;
  signal.Request(OkStatus());  // lets the detacher go
  if (!job.ok()) {
    if (left) {
      std::cout << "\ndetached; the job goes on. Come back with: " << ComeBack(common, job_id)
                << std::endl;
      return kExitDetached;
    }
    return Fail(job.status());
  }
  std::cout << progress.Summary() << std::flush;
  return ExitCodeOf(*job);
}

}  // namespace

int Submit(const Common& common, const std::string& file, bool watch) {
  std::optional<runtime::ShutdownSignal> signal;
  if (watch) signal.emplace();
  const auto spec = cluster::ReadJobFile(file);
  if (!spec.ok()) {
    Fail(spec.status());
    return kExitUsage;
  }
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->Submit(*spec);
  if (!response.ok()) return Fail(response.status());
  for (const std::string& warning : response->warnings())
    std::cerr << "warning: " << warning << "\n";
  std::cout << response->job_id() << std::endl;
  if (response->journal_bytes_per_step() > 0) {
    std::cerr << fmt::format("the journal grows by about {:.1f} MB a step\n",
                             static_cast<double>(response->journal_bytes_per_step()) / 1e6);
  }
  if (!watch) {
    std::cerr << "watch it with: " << ComeBack(common, response->job_id()) << std::endl;
    return kExitOk;
  }
  return WatchUntilItEnds(common, *signal, **client, response->job_id());
}

int Watch(const Common& common, const std::string& job_id) {
  runtime::ShutdownSignal signal;
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  return WatchUntilItEnds(common, signal, **client, job_id);
}

int Cancel(const Common& common, const std::string& job_id, const std::string& reason) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto job = (*client)->Cancel(job_id, reason);
  if (!job.ok()) return Fail(job.status());
  std::cout << "job " << job->job_id() << ": " << cluster::NameOf(job->state()) << std::endl;
  return kExitOk;
}

}  // namespace titan::cli
