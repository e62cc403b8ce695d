// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/probe.h"

#include <chrono>
#include <memory>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/runtime/address.h"

namespace titan::orchestrator {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kPatience{1};

struct Probe {
  explicit Probe(const asio::any_io_executor& executor) : socket(executor), timer(executor) {}
  asio::ip::tcp::socket socket;
  asio::steady_timer timer;
};

}  // namespace

void ProbePeer(const asio::any_io_executor& executor, const std::string& address,
               std::function<void(bool)> done) {
  const auto where = runtime::ParseHostPort(address);
  boost::system::error_code bad;
  const asio::ip::address host =
      where.ok()
          ? asio::ip::make_address(where->host == "localhost" ? "127.0.0.1" : where->host, bad)
          : asio::ip::address();
  if (!where.ok() || bad) {
    asio::post(executor, [done = std::move(done)] { done(true); });
    return;
  }
  auto probe = std::make_shared<Probe>(executor);
  probe->timer.expires_after(kPatience);
  probe->timer.async_wait([probe](boost::system::error_code cancelled) {
    boost::system::error_code ignored;
    if (!cancelled) probe->socket.close(ignored);  // ends the connect
  });
  probe->socket.async_connect({host, where->port},
                              [probe, done = std::move(done)](boost::system::error_code failed) {
                                probe->timer.cancel();
                                done(!failed);
                              });
}

}  // namespace titan::orchestrator
