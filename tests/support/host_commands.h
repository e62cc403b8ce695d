// SPDX-License-Identifier: Apache-2.0
//
// What StoreState has hosts do, by kind. Test code.
#ifndef TITAN_TESTS_SUPPORT_HOST_COMMANDS_H_
#define TITAN_TESTS_SUPPORT_HOST_COMMANDS_H_

#include <variant>
#include <vector>

#include "weightstore/store_state.h"

namespace titan::weightstore::testing {

inline constexpr const char* kHost = "local";

// The commands of one kind, in order.
template <typename Command>
std::vector<Command> CommandsOf(const Effects& effects) {
  std::vector<Command> list;
  for (const auto& [host, command] : effects.commands) {
    if (const auto* one = std::get_if<Command>(&command); one != nullptr) list.push_back(*one);
  }
  return list;
}

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_HOST_COMMANDS_H_
