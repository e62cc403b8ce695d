// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/listen.h"

#include <errno.h>

#include <system_error>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace titan::runtime {

int TryListen(const HostPort& address) {
  using boost::asio::ip::tcp;
  boost::system::error_code error;
  const auto ip = boost::asio::ip::make_address(NumericHost(address), error);
  if (error) return EADDRNOTAVAIL;
  const tcp::endpoint endpoint(ip, address.port);
  boost::asio::io_context io;
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  // As gRPC and the health listener do: a port whose last connections only fade is free.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1, error);
  return error.value();
}

Status CannotListen(const HostPort& address, int error) {
  std::string fix;
  if (error == EADDRINUSE) {
    fix = "; choose another port (0 takes a free one) or stop the process that holds this one";
  } else if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) {
    fix = "; choose an address of this machine, for example 127.0.0.1";
  } else if (error == EACCES) {
    fix = "; choose a port that an ordinary user may take, from 1024 up (0 takes a free one)";
  }
  return Unavailable("cannot listen on " + ToText(address) + ": " +
                     std::generic_category().message(error) + fix);
}

}  // namespace titan::runtime
