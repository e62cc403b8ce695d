// SPDX-License-Identifier: Apache-2.0
// From the parsed command line to the command; what the commands share.
#include <iostream>

#include <CLI/CLI.hpp>

#include "clients/cli/commands.h"
#include "clients/cluster/cluster.h"
#include "clients/cluster/terminal.h"
#include "services/rpc/status_convert.h"

namespace titan::cli {

int Fail(const Status& status) {
  std::cerr << "titanctl: " << cluster::Printable(MessageOf(status));
  if (const auto info = rpc::ErrorInfoOf(status); info.has_value() && !info->fix().empty()) {
    std::cerr << "\nfix: " << cluster::Printable(info->fix());
  }
  std::cerr << std::endl;
  return ExitCodeOf(status);
}

StatusOr<std::string> OrchestratorOf(const Common& common) {
  if (!common.address.empty()) return common.address;
  auto address = cluster::OrchestratorAddressOf(common.data);
  if (!address.ok() && address.status().code() == StatusCode::kNotFound) {
    return Unavailable(MessageOf(address.status()));
  }
  return address;
}

StatusOr<std::unique_ptr<cluster::JobClient>> ConnectTo(const Common& common) {
  TITAN_ASSIGN_OR_RETURN(const std::string address, OrchestratorOf(common));
  return cluster::JobClient::Connect(address, common.address.empty() ? common.data : "");
}

int Run(const Arguments& arguments) {
  const Common& common = arguments.common;
  const std::string& command = arguments.command;
  if (command == "up") return Up(common, arguments.up);
  if (command == "supervise") return Supervise(common, arguments.up, arguments.report_fd);
  if (command == "down") return Down(common);
  if (command == "status") return ShowStatus(common);
  if (command == "submit") return Submit(common, arguments.submit);
  if (command == "list") return ListJobs(common);
  if (command == "get") return GetJob(common, arguments.job);
  if (command == "watch") return Watch(common, arguments.job);
  if (command == "cancel") return Cancel(common, arguments.job, arguments.reason);
  if (command == "rollouts") return ShowRollouts(common, arguments.job, arguments.rollouts);
  if (command == "chat") return Chat(common, arguments.job, arguments.chat);
  if (command == "report") return Report(common, arguments.job, arguments.report);
  if (command == "logs") return ShowLogs(common, arguments.logs);
  if (command == "metrics") return ShowMetrics(common, arguments.metrics);
  if (command == "doctor") return Doctor(common, arguments.doctor);
  if (command == "data upload") return UploadData(common, arguments.upload);
  if (command == "data list") return ListData(common);
  if (command == "data rm") return RemoveData(common, arguments.data_id);
  if (command == "weights ls") return ListWeights(common, arguments.weights);
  if (command == "weights show") return ShowWeights(common, arguments.weights);
  if (command == "weights verify") return VerifyWeights(common, arguments.weights);
  if (command == "weights import") return ImportWeights(common, arguments.weights);
  if (command == "weights export") return ExportWeights(common, arguments.weights);
  if (command == "weights rm") return RemoveWeights(common, arguments.weights);
  if (command == "weights gc") return CollectWeights(common, arguments.weights);
  if (command == "weights diff") return DiffWeights(common, arguments.weights);
  if (command == "completion") {
    Arguments ignored;
    std::cout << CompletionScript(*MakeParser(&ignored), arguments.shell);
    return kExitOk;
  }
  return Fail(Internal("no command '" + command + "'"));
}

}  // namespace titan::cli
