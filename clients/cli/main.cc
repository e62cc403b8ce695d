// SPDX-License-Identifier: Apache-2.0
// titanctl: starts an embedded cluster, submits jobs and watches them.
#include <iostream>

#include <CLI/CLI.hpp>

#include "clients/cli/commands.h"
#include "core/runtime/log.h"

namespace {

constexpr char kExamples[] = R"(Examples:
  titanctl up --data run                 start every daemon on this machine
  titanctl status --data run -o json     who runs where, as JSON
  titanctl submit job.json -w --data run submit a job and watch it
  titanctl watch JOB --data run          come back to a job
  titanctl cancel JOB --data run         end a job
  titanctl down --data run               end every daemon

Exit codes: 0 done, 1 failed, 2 wrong use or input, 3 job failed, 4 job cancelled,
5 no cluster, 130 detached by Ctrl-C. NO_COLOR turns colours off.)";

}  // namespace

int main(int argc, char** argv) {
  using namespace titan::cli;  // NOLINT: main is the face of this namespace
  titan::runtime::InitLog(
      {.level = titan::runtime::LogLevel::kError});  // the terminal is for people
  CLI::App app("Controls a TitanRL cluster and its jobs.", "titanctl");
  app.footer(kExamples);
  app.require_subcommand(1);
  app.set_version_flag("--version", "titanctl 0.1.0");
  Common common;
  std::string output = "table";
  const auto shared = [&](CLI::App* command) {
    command->add_option("--data", common.data, "Data folder of the cluster")->capture_default_str();
    return command;
  };
  const auto remote = [&](CLI::App* command) {
    shared(command)->add_option("--address", common.address,
                                "Orchestrator host:port, instead of the data folder's cluster");
    return command;
  };
  int code = kExitOk;
  UpOptions up;
  int report_fd = -1;
  std::string job, file, reason = "cancelled by user";
  bool wait = false;

  CLI::App* up_command = shared(app.add_subcommand("up", "Start every daemon on this machine"));
  CLI::App* supervise =
      shared(app.add_subcommand("supervise", "Run the supervisor in the foreground"));
  for (CLI::App* command : {up_command, supervise}) {
    command->add_option("--config", up.config, "Cluster configuration, strict JSON")
        ->check(CLI::ExistingFile);
    command->add_option("--generators", up.generators, "Number of generators")
        ->check(CLI::Range(1, 64));
  }
  supervise->add_option("--report_fd", report_fd, "Descriptor that gets the outcome of the start");
  supervise->group("");  // not in the help: what `up` runs
  up_command->callback([&] { code = Up(common, up); });
  supervise->callback([&] { code = Supervise(common, up, report_fd); });

  shared(app.add_subcommand("down", "End every daemon"))->callback([&] { code = Down(common); });

  CLI::App* status = remote(app.add_subcommand("status", "Show processes, workers and jobs"));
  status->add_option("-o,--output", output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  status->callback([&] {
    common.json = output == "json";
    code = ShowStatus(common);
  });

  CLI::App* submit = remote(app.add_subcommand("submit", "Submit a job"));
  submit->add_option("file", file, "Job file, strict JSON")->required();
  submit->add_flag("-w,--watch", wait, "Watch it until it ends");
  submit->callback([&] { code = Submit(common, file, wait); });

  CLI::App* watch =
      remote(app.add_subcommand("watch", "Show the progress of a job; Ctrl-C detaches"));
  watch->add_option("job", job, "Job id")->required();
  watch->callback([&] { code = Watch(common, job); });

  CLI::App* cancel = remote(app.add_subcommand("cancel", "End a job"));
  cancel->add_option("job", job, "Job id")->required();
  cancel->add_option("--reason", reason, "Shown in the job");
  cancel->callback([&] { code = Cancel(common, job, reason); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  }
  return code;
}
