// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/address.h"

#include <charconv>

#include <boost/asio/ip/address.hpp>

namespace titan::runtime {

StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument("address '" + std::string(text) + "' " + std::string(why) +
                           "; write host:port, for example 127.0.0.1:0");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("needs brackets around its IPv6 host");
  }
  if (host.empty()) return bad("has no host");
  unsigned port = 0;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port > 65535) {
    return bad("has a port that is not 0..65535");
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

std::string ToText(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::string NumericHost(const HostPort& address) {
  return address.host == "localhost" ? "127.0.0.1" : address.host;
}

bool IsNumeric(const HostPort& address) {
  boost::system::error_code error;
  boost::asio::ip::make_address(NumericHost(address), error);
  return !error;
}

bool IsLoopback(const HostPort& address) {
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(NumericHost(address), error);
  return !error && parsed.is_loopback();
}

}  // namespace titan::runtime
