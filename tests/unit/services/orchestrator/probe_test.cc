// SPDX-License-Identifier: Apache-2.0
//
// Goal: a probe says that somebody listens, or that nobody does, only where it is so. Method: real
// sockets on loopback.
#include "services/orchestrator/probe.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace titan::orchestrator {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class ProbeTest : public ::testing::Test {
 protected:
  std::optional<Presence> Probe(const std::string& address) {
    std::optional<Presence> found;
    ProbePeer(io_.get_executor(), address, [&](Presence presence) { found = presence; });
    io_.restart();
    io_.run();
    return found;
  }
  static std::string Address(const tcp::acceptor& acceptor) {
    return "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  }

  asio::io_context io_;
  tcp::acceptor listener_{io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
};

TEST_F(ProbeTest, WhoListensAndWhoIsGone) {
  EXPECT_EQ(Probe(Address(listener_)), Presence::kListens);
  const std::string address = Address(listener_);
  listener_.close();
  EXPECT_EQ(Probe(address), Presence::kGone);
  EXPECT_EQ(Probe("elsewhere:1"), Presence::kUnknown);
}

TEST_F(ProbeTest, WhoTakesNoConnectionIsNotSaidToBeGone) {
  listener_.listen(0);
  // As those that came while its process was stopped.
  std::vector<tcp::socket> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(io_);
    waiting.back().open(tcp::v4());
    waiting.back().native_non_blocking(true);
    const tcp::endpoint peer = listener_.local_endpoint();
    (void)connect(waiting.back().native_handle(), peer.data(), static_cast<socklen_t>(peer.size()));
  }
  EXPECT_EQ(Probe(Address(listener_)), Presence::kUnknown);
}

TEST_F(ProbeTest, AProcessWithoutDescriptorsCannotFindOut) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::optional<Presence> found = Probe(Address(listener_));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(found, Presence::kUnknown);
}

}  // namespace
}  // namespace titan::orchestrator
