// SPDX-License-Identifier: Apache-2.0
//
// What a client must be able to read of an answer, for fuzz targets of services. Any thread.
#ifndef TITAN_TESTS_FUZZ_TOLD_ERROR_H_
#define TITAN_TESTS_FUZZ_TOLD_ERROR_H_

#include <string>

#include "core/base/status.h"
#include "services/rpc/status_convert.h"

namespace titan::fuzz {

// Why the client could not read this error; empty: it can, or there is none.
inline std::string UnreadableError(const Status& status) {
  const grpc::Status told = rpc::ToGrpc(status);
  if (told.ok()) return "";
  if (told.error_message().empty()) return "an error without words";
  // Trailing metadata of more than 8 KiB reaches no client.
  const size_t words = told.error_message().size(), details = told.error_details().size();
  if (words + details <= 7000) return "";
  return "an error of " + std::to_string(words) + " + " + std::to_string(details) +
         " bytes: " + told.error_message().substr(0, 200);
}

// The same of an answer that is more than 4 MiB, gRPC's limit.
template <typename Response>
std::string UnreadableAnswer(const StatusOr<Response>& response) {
  if (!response.ok() || response->ByteSizeLong() <= (4u << 20)) return "";
  return "a reply of " + std::to_string(response->ByteSizeLong()) + " bytes";
}

}  // namespace titan::fuzz

#endif  // TITAN_TESTS_FUZZ_TOLD_ERROR_H_
