// SPDX-License-Identifier: Apache-2.0
#include "clients/demo/demo.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <thread>

#include "clients/cluster/cluster.h"
#include "clients/cluster/cluster_config.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/progress.h"
#include "clients/cluster/terminal.h"
#include "clients/demo/demo_data.h"
#include "clients/demo/demo_folder.h"
#include "clients/demo/demo_result.h"
#include "core/base/exit_codes.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/files.h"
#include "services/rpc/config.h"

namespace titan::demo {
namespace {

constexpr int kExitInterrupted = 130;

int Fail(const Status& status) {
  std::cerr << "titan-demo: " << cluster::Printable(MessageOf(status)) << std::endl;
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : ExitCodeOfEnd(status);
}

// Writes data and job into the folder; answers the job.
StatusOr<config::v1::JobSpec> WriteInputs(const DemoOptions& options, const std::string& folder) {
  DemoJob demo;
  demo.model_path = options.model;
  demo.data_path = folder + "/additions.jsonl";
  demo.steps = options.steps;
  demo.seed = options.seed;
  TITAN_RETURN_IF_ERROR(runtime::WriteFileAtomically(demo.data_path, DataText()));
  const config::v1::JobSpec job = MakeJob(demo);
  TITAN_RETURN_IF_ERROR(runtime::WriteFileAtomically(
      folder + "/job.json", rpc::ToJsonText(job, /*all_fields=*/false) + "\n"));
  return job;
}

StatusOr<config::v1::ClusterConfig> MakeConfig(const DemoOptions& options,
                                               const std::string& folder,
                                               rpc::ConfigOrigins* origins) {
  config::v1::ClusterConfig config;
  cluster::FillClusterDefaults(&config);
  rpc::ConfigProblems problems;
  if (!options.cluster_config.empty()) {
    TITAN_RETURN_IF_ERROR(rpc::ReadConfigFile(options.cluster_config, &config, origins,
                                              cluster::ValidClusterValues(), &problems));
  }
  if (!config.data_folder().empty()) {
    rpc::AddProblems({{"data_folder", "is filled in from the command line; leave it out"}},
                     &problems);
  }
  config.set_data_folder(folder + "/cluster");
  rpc::ConfigProblems of_values;
  cluster::ValidateCluster(config, *origins, &of_values);
  rpc::AddProblems(std::move(of_values), &problems);
  TITAN_RETURN_IF_ERROR(rpc::ProblemsToStatus(problems, *origins));
  return config;
}

// Submits, shows progress, answers the ended job. Cancelled: interrupted.
StatusOr<orchestrator::v1::Job> Train(const config::v1::JobSpec& spec, cluster::JobClient& client,
                                      cluster::JobProgress* progress) {
  TITAN_ASSIGN_OR_RETURN(const auto submitted, client.Submit(spec));
  for (const std::string& warning : submitted.warnings())
    std::cout << "warning: " << cluster::Printable(warning) << "\n";
  return client.Watch(submitted.job_id(), 0, [&](const orchestrator::v1::WatchJobResponse& event) {
    std::cout << progress->OnEvent(event) << std::flush;
  });
}

// What the job looks like when its end was not seen.
orchestrator::v1::Job LostJob(const cluster::JobProgress& progress, const std::string& reason) {
  orchestrator::v1::Job job = progress.job();
  job.set_state(orchestrator::v1::JOB_STATE_FAILED);
  job.set_reason(reason);
  return job;
}

}  // namespace

int RunDemo(const DemoOptions& options, runtime::ShutdownSignal& signal) {
  std::error_code error;
  if (!std::filesystem::exists(options.model, error)) {
    return Fail(InvalidArgument("--model '" + options.model +
                                "' does not exist; name a GGUF file of SmolLM2-135M-Instruct, or "
                                "leave --model out after `make setup`, which unpacks one"));
  }
  const std::string folder = std::filesystem::weakly_canonical(options.output, error).string();
  if (error) return Fail(InvalidArgument("--output '" + options.output + "': " + error.message()));
  cluster::ClusterOptions cluster_options;
  const auto config = MakeConfig(options, folder, &cluster_options.origins);
  if (!config.ok()) return Fail(config.status());
  const Status made = runtime::MakeWritableFolder(folder);
  if (!made.ok()) return Fail(made);
  const std::string result_path = folder + "/result.json";
  // What an earlier run left goes; a run that lives is left alone, its inputs too.
  if (runtime::FileLock::IsHeld(cluster::LockPath(config->data_folder()))) {
    return Fail(FailedPrecondition("another demo runs in '" + folder +
                                   "'; wait for it, or choose another folder with --output"));
  }
  const Status ours = ClaimFolder(folder, config->data_folder());
  if (!ours.ok()) return Fail(ours);
  const Status emptied = RemoveClusterFiles(config->data_folder());
  if (!emptied.ok()) return Fail(emptied);
  std::filesystem::remove(result_path, error);
  const auto spec = WriteInputs(options, folder);
  if (!spec.ok()) return Fail(spec.status());

  const cluster::Terminal terminal = cluster::Terminal::Stdout();
  std::cout << terminal.Paint(cluster::Color::kBold,
                              fmt::format("SmolLM2-135M learns to add: {} steps, seed {}",
                                          options.steps, options.seed))
            << "\nfiles and logs: " << folder << std::endl;
  cluster_options.config = *config;
  cluster_options.bin_folder =
      std::filesystem::path(runtime::ExecutablePath()).parent_path().string();
  std::cout << "look at it from another terminal: "
            << cluster::ShellWord(cluster_options.bin_folder + "/titanctl")
            << " watch job-1 (or rollouts job-1, report job-1, chat job-1, weights ls) --data "
            << cluster::ShellWord(config->data_folder()) << std::endl;
  if (!options.cluster_config.empty()) {
    const auto path = std::filesystem::absolute(options.cluster_config, error);
    cluster_options.up_options = {"--config", path.string()};
  }
  cluster_options.say = [](const std::string& text) { std::cout << text << std::endl; };
  auto cluster =
      cluster::Cluster::Start(std::move(cluster_options), [&] { return signal.requested(); });
  if (!cluster.ok()) {
    const bool interrupted = cluster.status().code() == StatusCode::kCancelled;
    const int code = Fail(cluster.status());
    return interrupted ? kExitInterrupted : code;
  }
  std::vector<std::vector<std::string>> table = {{"PROCESS", "PID"}};
  for (const auto& process : (*cluster)->processes()) {
    table.push_back({process.spec.name, std::to_string(process.pid)});
  }
  std::cout << cluster::FormatTable(table) << std::flush;

  auto client = cluster::JobClient::Connect((*cluster)->orchestrator_address());
  if (!client.ok()) return Fail(client.status());
  std::atomic<bool> done = false;
  std::jthread interrupter([&] {
    signal.Wait().IgnoreError();  // why does not matter here
    if (!done) (*client)->StopWatching();
  });
  cluster::JobProgress progress(terminal);
  auto job = Train(*spec, **client, &progress);
  const bool interrupted = signal.requested();
  done = true;
  signal.Request(OkStatus());  // lets the interrupter go
  if (!job.ok()) {
    const std::string degraded = (*cluster)->degraded();
    std::string reason = interrupted ? "interrupted" : MessageOf(job.status());
    if (!degraded.empty()) reason += "; cluster degraded: " + degraded;
    job = LostJob(progress, reason);
  }
  interrupter.join();
  client->reset();  // an idle connection would hold up the orchestrator's shutdown
  if (interrupted) {
    std::cout << fmt::format("\ninterrupted after {} of {} steps: the job ends with its daemons\n",
                             progress.steps().size(), options.steps)
              << std::flush;
  }
  (*cluster)->Stop();
  const auto failures = Failures(*job, progress);
  std::cout << progress.Summary();
  const Status written = runtime::WriteFileAtomically(
      result_path, ResultText(*job, progress, (*cluster)->processes(), failures));
  if (!written.ok()) return Fail(written);
  std::cout << "result: " << result_path << std::endl;
  for (const std::string& failure : failures) {
    std::cerr << "titan-demo: " << cluster::Printable(failure) << std::endl;
  }
  if (interrupted) return kExitInterrupted;
  return failures.empty() ? 0 : kExitFailed;
}

}  // namespace titan::demo
