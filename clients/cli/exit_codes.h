// SPDX-License-Identifier: Apache-2.0
//
// The exit codes of titanctl: the one place that states them. `titanctl --help` prints the table.
#ifndef TITAN_CLIENTS_CLI_EXIT_CODES_H_
#define TITAN_CLIENTS_CLI_EXIT_CODES_H_

#include <string>

#include "core/base/exit_codes.h"
#include "core/base/status.h"

namespace titan::cli {

// kExitOk, kExitFailed, kExitUsage and kExitDamaged are those of all programs.
inline constexpr int kExitJobFailed = 3;
inline constexpr int kExitJobCancelled = 4;
inline constexpr int kExitUnreachable = 5;
inline constexpr int kExitInUse = 6;
inline constexpr int kExitNoSuchThing = 7;
inline constexpr int kExitDetached = 130;

struct ExitCode {
  int code;
  const char* meaning;
};
inline constexpr ExitCode kExitCodes[] = {
    {kExitOk, "done; with -w: the job succeeded"},
    {kExitFailed, "the operation failed; of weights diff: the weights differ"},
    {kExitUsage, "wrong use or wrong input, nothing was changed; of weights diff: it failed"},
    {kExitJobFailed, "the job FAILED"},
    {kExitJobCancelled, "the job was CANCELLED"},
    {kExitUnreachable, "no cluster runs there, or it does not answer"},
    {kExitInUse, "a cluster runs in this data folder already"},
    {kExitNoSuchThing, "no such job, step, group, version, model, daemon or metric"},
    {kExitDamaged,
     "what is stored is damaged: a model, a kept version, data or a daemon's records"},
    {kExitDetached, "detached or interrupted by Ctrl-C"},
};

// "  0    done; ...\n" for each.
std::string ExitCodeTable();

// The code that fits a failure.
int ExitCodeOf(const Status& status);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_EXIT_CODES_H_
