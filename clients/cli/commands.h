// SPDX-License-Identifier: Apache-2.0
//
// The commands of titanctl. Each prints and returns the exit code (exit_codes.h).
#ifndef TITAN_CLIENTS_CLI_COMMANDS_H_
#define TITAN_CLIENTS_CLI_COMMANDS_H_

#include <memory>
#include <string>

#include "clients/cli/arguments.h"
#include "clients/cluster/job_client.h"
#include "core/base/status.h"
#include "core/runtime/shutdown.h"

namespace titan::cli {

// Prints "titanctl: <message>" and the fix of its detail to stderr; the exit code that fits.
int Fail(const Status& status);
// What a second Ctrl-C says and does: the process ends at once, with the code of an interrupt.
inline const runtime::SecondSignal kSecondSignal = {"titanctl: interrupted twice; left at once",
                                                    kExitDetached};
// An orchestrator to talk to: --address, or the one of the data folder. Unavailable: no cluster.
StatusOr<std::string> OrchestratorOf(const Common& common);
StatusOr<std::unique_ptr<cluster::JobClient>> ConnectTo(const Common& common);
// Runs what the command line asks for.
int Run(const Arguments& arguments);

int Up(const Common& common, const UpOptions& options);
// The supervisor process that Up starts; reports "ready" or the failure on `report_fd`.
int Supervise(const Common& common, const UpOptions& options, int report_fd);
int Down(const Common& common);
int ShowStatus(const Common& common);

int Submit(const Common& common, const SubmitOptions& options);
int ListJobs(const Common& common);
int GetJob(const Common& common, const std::string& job_id);
int Watch(const Common& common, const std::string& job_id);
int Cancel(const Common& common, const std::string& job_id, const std::string& reason);

int ShowRollouts(const Common& common, const std::string& job_id, const RolloutOptions& options);
int Chat(const Common& common, const std::string& job_id, const ChatOptions& options);
int Report(const Common& common, const std::string& job_id, const ReportOptions& options);
int ShowLogs(const Common& common, const LogOptions& options);
int ShowMetrics(const Common& common, const MetricsOptions& options);
int Doctor(const Common& common, const DoctorOptions& options);
int UploadData(const Common& common, const DataOptions& options);
int ListData(const Common& common);
int RemoveData(const Common& common, const std::string& data_id);
int ListWeights(const Common& common, const WeightsOptions& options);
int ShowWeights(const Common& common, const WeightsOptions& options);
int VerifyWeights(const Common& common, const WeightsOptions& options);
int ImportWeights(const Common& common, const WeightsOptions& options);
int ExportWeights(const Common& common, const WeightsOptions& options);
int RemoveWeights(const Common& common, const WeightsOptions& options);
int CollectWeights(const Common& common, const WeightsOptions& options);
int DiffWeights(const Common& common, const WeightsOptions& options);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_COMMANDS_H_
