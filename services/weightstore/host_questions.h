// SPDX-License-Identifier: Apache-2.0
//
// What a leader asks of a host in another process and waits for: the calls of HostPort that answer.
#ifndef TITAN_SERVICES_WEIGHTSTORE_HOST_QUESTIONS_H_
#define TITAN_SERVICES_WEIGHTSTORE_HOST_QUESTIONS_H_

#include <cstdint>
#include <optional>

#include "core/base/status.h"
#include "titan/weightstore/v1/host.pb.h"
#include "weightstore/host.h"

namespace titan::weightstore {

// The number of a question; nullopt: the message is a command, or nothing that this host knows.
std::optional<uint64_t> QuestionOf(const v1::HostCommand& message);

// The answer, without its number. Blocks (hashing, copying). Codes of Host's calls; InvalidArgument
// names the field. REQUIRES: QuestionOf has a number.
StatusOr<v1::HostAnswer> AnswerTo(const v1::HostCommand& question, Host& host);

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_HOST_QUESTIONS_H_
