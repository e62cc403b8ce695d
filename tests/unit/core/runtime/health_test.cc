// SPDX-License-Identifier: Apache-2.0
// Goal: the health listener answers its three paths and nothing else, refuses what is large, and
// survives what is not HTTP.
#include "core/runtime/health.h"

#include <gtest/gtest.h>

#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "core/runtime/address.h"

namespace titan::runtime {
namespace {

namespace asio = boost::asio;

// Sends bytes, returns everything until the peer closes.
std::string Exchange(const std::string& address, const std::string& bytes) {
  const auto parsed = ParseHostPort(address);
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address(parsed->host), parsed->port});
  boost::system::error_code error;
  asio::write(socket, asio::buffer(bytes), error);
  std::string reply;
  asio::read(socket, asio::dynamic_buffer(reply), error);
  return reply;
}

std::string Get(const std::string& address, const std::string& path, const char* method = "GET") {
  return Exchange(address, std::string(method) + " " + path +
                               " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

class HealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = HealthListener::Create("127.0.0.1:0", metrics_);
    ASSERT_TRUE(made.ok()) << made.status();
    listener_ = *std::move(made);
  }
  Metrics metrics_;
  std::unique_ptr<HealthListener> listener_;
};

TEST_F(HealthTest, ReadyFollowsTheDaemonAndAliveDoesNot) {
  const std::string& at = listener_->address();
  EXPECT_TRUE(Get(at, "/healthz").starts_with("HTTP/1.1 200"));
  const std::string before = Get(at, "/readyz");
  EXPECT_TRUE(before.starts_with("HTTP/1.1 503"));
  EXPECT_NE(before.find("starting"), std::string::npos);
  listener_->SetReady(true, "");
  EXPECT_TRUE(Get(at, "/readyz").starts_with("HTTP/1.1 200"));
  listener_->SetReady(false, "shutting down");
  EXPECT_NE(Get(at, "/readyz").find("shutting down"), std::string::npos);
  EXPECT_TRUE(Get(at, "/healthz").starts_with("HTTP/1.1 200"));
}

TEST_F(HealthTest, MetricsAreTheRegistry) {
  Counter counter = metrics_.AddCounter("titan_test_events_total", "Events", {{"kind", "a"}});
  counter.Add(3);
  Histogram histogram = metrics_.AddHistogram("titan_test_wait_seconds", "Waits", SecondsBuckets());
  histogram.Observe(0.02);
  const std::string text = Get(listener_->address(), "/metrics");
  EXPECT_NE(text.find("titan_test_events_total{kind=\"a\"} 3"), std::string::npos) << text;
  EXPECT_NE(text.find("titan_test_wait_seconds_count 1"), std::string::npos) << text;
  ASSERT_EQ(metrics_.Describe().size(), 2u);
  EXPECT_EQ(metrics_.Describe()[1].type, "histogram");
}

TEST_F(HealthTest, EverythingElseIsRefused) {
  const std::string& at = listener_->address();
  EXPECT_TRUE(Get(at, "/").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(Get(at, "/metrics/../etc/passwd").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(Get(at, "/metrics?x=1").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(Get(at, "/healthz", "POST").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(Get(at, "/healthz", "DELETE").starts_with("HTTP/1.1 405"));
}

TEST_F(HealthTest, LargeOrBrokenRequestsCloseTheConnectionOnly) {
  const std::string& at = listener_->address();
  EXPECT_EQ(Get(at, "/" + std::string(20000, 'a')), "");
  EXPECT_EQ(Exchange(at, std::string("\x16\x03\x01\x02\x00 not http\r\n\r\n", 18)), "");
  EXPECT_EQ(Exchange(at, "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"),
            "");
  EXPECT_TRUE(Get(at, "/healthz").starts_with("HTTP/1.1 200"));
}

TEST_F(HealthTest, AddressInUseIsAnErrorThatNamesIt) {
  const auto second = HealthListener::Create(listener_->address(), metrics_);
  ASSERT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(MessageOf(second.status()).find(listener_->address()), std::string::npos);
}

TEST(MetricsDeathTest, NamesThatBreakTheRulesAreOurBug) {
  Metrics metrics;
  EXPECT_DEATH(metrics.AddCounter("titan_x_events", "no _total"), "check failed");
  EXPECT_DEATH(metrics.AddGauge("titan_x_size_total", "a gauge"), "check failed");
  EXPECT_DEATH(metrics.AddGauge("other_x_bytes", "prefix"), "check failed");
}

TEST(AddressTest, TextsAreParsedOrRefused) {
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "::1");
  EXPECT_EQ(ToText(*ParseHostPort("[::1]:80")), "[::1]:80");
  for (const char* bad : {"", "127.0.0.1", ":80", "::1:80", "h:", "h:65536", "h:-1", "h:8x"}) {
    EXPECT_EQ(ParseHostPort(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(NumericHost({"localhost", 1}), "127.0.0.1");
  EXPECT_EQ(NumericHost({"::1", 1}), "::1");
  EXPECT_EQ(NumericHost({"example.org", 1}), "example.org");
  EXPECT_TRUE(IsNumeric({"localhost", 1}));
  EXPECT_TRUE(IsNumeric({"::1", 1}));
  EXPECT_FALSE(IsNumeric({"example.org", 1}));
  EXPECT_TRUE(IsLoopback({"127.5.4.3", 1}));
  EXPECT_TRUE(IsLoopback({"localhost", 1}));
  EXPECT_FALSE(IsLoopback({"0.0.0.0", 1}));
  EXPECT_FALSE(IsLoopback({"10.0.0.1", 1}));
  EXPECT_FALSE(IsLoopback({"example.org", 1}));
}

}  // namespace
}  // namespace titan::runtime
