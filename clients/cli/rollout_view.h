// SPDX-License-Identifier: Apache-2.0
//
// Rollouts as people read them: prompt, replies with their rewards, and every token with its
// log-prob and policy version. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLI_ROLLOUT_VIEW_H_
#define TITAN_CLIENTS_CLI_ROLLOUT_VIEW_H_

#include <string>
#include <string_view>

#include "clients/cluster/terminal.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::cli {

// One group. With `tokens` each reply is followed by its tokens, one a row.
std::string FormatRollout(const orchestrator::v1::ListRolloutsResponse& group, bool tokens,
                          const cluster::Terminal& terminal);

// Text on one line: control characters and backslashes escaped.
std::string Escape(std::string_view text);

// "0x0000000000100200"; and back (false: not 0x and a hexadecimal number of 64 bits).
std::string FormatGroupId(uint64_t id);
bool ParseGroupId(std::string_view text, uint64_t* id);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_ROLLOUT_VIEW_H_
