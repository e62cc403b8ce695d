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

// A killed process answers for a moment longer, until the kernel has closed its listener, and a
// connect that meets just that is reset: one that was not refused is asked again.
constexpr int kLooks = 4;
constexpr std::chrono::milliseconds kPause{200};

struct Probe {
  Probe(const asio::any_io_executor& executor, asio::ip::tcp::endpoint where)
      : peer(std::move(where)), socket(executor), timer(executor) {}
  const asio::ip::tcp::endpoint peer;
  asio::ip::tcp::socket socket;
  asio::steady_timer timer;
};

// What else may fail is this process's own trouble (no descriptors left), or its patience.
Presence PresenceOf(const boost::system::error_code& failed) {
  if (!failed) return Presence::kListens;
  const bool gone = failed == asio::error::connection_refused ||
                    failed == asio::error::host_unreachable ||
                    failed == asio::error::network_unreachable ||
                    failed == asio::error::connection_reset;  // still, after every look
  return gone ? Presence::kGone : Presence::kUnknown;
}

void Look(const std::shared_ptr<Probe>& probe, int looks, std::function<void(Presence)> done) {
  probe->timer.expires_after(kPatience);
  probe->timer.async_wait([probe](boost::system::error_code cancelled) {
    boost::system::error_code ignored;
    if (!cancelled) probe->socket.close(ignored);  // ends the connect
  });
  probe->socket.async_connect(probe->peer, [probe, looks, done = std::move(done)](
                                               boost::system::error_code failed) mutable {
    boost::system::error_code ignored;
    probe->socket.close(ignored);
    const bool again = !failed || failed == asio::error::connection_reset;
    if (!again || looks == 1) {
      probe->timer.cancel();
      return done(PresenceOf(failed));
    }
    probe->timer.expires_after(kPause);
    probe->timer.async_wait([probe, looks, done = std::move(done)](auto) mutable {
      Look(probe, looks - 1, std::move(done));
    });
  });
}

}  // namespace

void ProbePeer(const asio::any_io_executor& executor, const std::string& address,
               std::function<void(Presence)> done) {
  const auto where = runtime::ParseHostPort(address);
  boost::system::error_code bad;
  const asio::ip::address host =
      where.ok() ? asio::ip::make_address(runtime::NumericHost(*where), bad) : asio::ip::address();
  if (!where.ok() || bad) {
    asio::post(executor, [done = std::move(done)] { done(Presence::kUnknown); });
    return;
  }
  Look(std::make_shared<Probe>(executor, asio::ip::tcp::endpoint(host, where->port)), kLooks,
       std::move(done));
}

}  // namespace titan::orchestrator
