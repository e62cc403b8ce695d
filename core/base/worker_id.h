// SPDX-License-Identifier: Apache-2.0
//
// What a worker may be called: its name stands in messages, logs, metrics and file names. A pure
// function, any thread.
#ifndef TITAN_CORE_BASE_WORKER_ID_H_
#define TITAN_CORE_BASE_WORKER_ID_H_

#include <string_view>

namespace titan {

inline constexpr char kWorkerIdRule[] =
    "wants 1 to 64 letters, digits, '-', '_' and '.', the first one not '.'";

inline bool IsWorkerId(std::string_view id) {
  return !id.empty() && id.size() <= 64 && id[0] != '.' &&
         id.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
             std::string_view::npos;
}

}  // namespace titan

#endif  // TITAN_CORE_BASE_WORKER_ID_H_
