// SPDX-License-Identifier: Apache-2.0
//
// host:port texts. Pure functions, any thread.
#ifndef TITAN_CORE_RUNTIME_ADDRESS_H_
#define TITAN_CORE_RUNTIME_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace titan::runtime {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "127.0.0.1:0", "localhost:80", "[::1]:80"; InvalidArgument says what is wrong.
StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string ToText(const HostPort& address);
// The host in digits where it is known without a name server: localhost is 127.0.0.1, others are as
// they stand.
std::string NumericHost(const HostPort& address);
// 127.0.0.0/8, ::1 or localhost.
bool IsLoopback(const HostPort& address);
// localhost or an IP address in digits: a host that no name server is asked about.
bool IsNumeric(const HostPort& address);

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_ADDRESS_H_
