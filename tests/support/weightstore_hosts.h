// SPDX-License-Identifier: Apache-2.0
//
// Leader and host daemons of the weight store as processes of their own, with clients in this
// process. Test code.
#ifndef TITAN_TESTS_SUPPORT_WEIGHTSTORE_HOSTS_H_
#define TITAN_TESTS_SUPPORT_WEIGHTSTORE_HOSTS_H_

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "tests/support/sanitized.h"
#include "tests/support/weightstore_daemon.h"
#include "weightstore/client/subscriber.h"

namespace titan::weightstore::testing {

using std::chrono::milliseconds;
using titan::testing::Eventually;

inline constexpr milliseconds kLongestCall{titan::testing::Rounds(4'000, 20'000)};
inline constexpr milliseconds kPatience{titan::testing::Rounds(30'000, 120'000)};

class HostsTest : public ::testing::Test {
 protected:
  explicit HostsTest(bool serves_tcp = false) {
    StartLeader();
    StartHost(host_, "h1", serves_tcp);
  }

  // At the same address every time, which its hosts know.
  void StartLeader() {
    leader_.role = "leader";
    if (!leader_.address().empty()) leader_.more_arguments = {"--listen", leader_.address()};
    ASSERT_TRUE(leader_.Start()) << leader_.exit_code() << "\n" << leader_.log();
    standalone_ = *StandaloneLeader::Create(leader_.address());
    port_ = &standalone_->port();
    stub_ = v1::WeightStoreService::NewStub(*rpc::MakeChannel(leader_.address()));
  }
  void StartHost(WeightStoreProcess& host, const std::string& name, bool serves_tcp = false) {
    host.role = "host";
    host.more_config =
        R"(, "leader_address": ")" + leader_.address() + R"(", "host": ")" + name + "\"";
    if (serves_tcp) host.more_config += R"(, "data_plane_address": "127.0.0.1:0")";
    ASSERT_TRUE(host.Start()) << host.exit_code() << "\n" << host.log();
  }

  std::unique_ptr<Publisher> Register(WeightStoreProcess& host, const std::string& run = "run",
                                      const Manifest& manifest = SmallManifest()) {
    std::unique_ptr<Publisher> publisher;
    Status last;
    // Until the host is attached.
    Eventually(
        [&] {
          auto registered =
              Publisher::Register(*port_, {.socket_path = host.socket_path(),
                                           .run_id = run,
                                           .request_id = "r" + std::to_string(++requests_),
                                           .manifest = manifest,
                                           .max_age = 1});
          last = registered.status();
          if (registered.ok()) publisher = *std::move(registered);
          return publisher != nullptr || last.code() != StatusCode::kUnavailable;
        },
        kPatience);
    EXPECT_NE(publisher, nullptr) << last << "\n" << leader_.log() << host.log();
    return publisher;
  }
  // Writes and hashes; Commit is left.
  Hash128 Write(Publisher& publisher, uint64_t version) {
    const auto begun = publisher.Begin(version, milliseconds(5000));
    EXPECT_TRUE(begun.ok()) << begun.status();
    if (!begun.ok()) return {};
    Fill(begun->bytes, version);
    const auto digest = publisher.Finish();
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.ok() ? *digest : Hash128{};
  }
  Hash128 Publish(Publisher& publisher, uint64_t version) {
    const Hash128 digest = Write(publisher, version);
    const auto committed = publisher.Commit("plan", version);
    EXPECT_TRUE(committed.ok()) << committed.status();
    return digest;
  }
  Subscriber Reader(WeightStoreProcess& host, const std::string& holder = "generator-0") {
    return Subscriber(*port_, host.socket_path(), holder);
  }

  // Until the successor is attached and has looked at the bytes.
  bool Renewed(const Subscriber& reader, HeldVersion& version) {
    Status last;
    const bool renewed = Eventually(
        [&] {
          last = reader.Renew(version);
          return last.ok() || !Subscriber::MayRenewLater(last);
        },
        kPatience);
    EXPECT_TRUE(last.ok()) << last << "\n" << host_.log();
    return renewed && last.ok();
  }

  std::map<uint64_t, v1::VersionInfo> Versions(const std::string& run = "run") {
    return VersionsOf(*stub_, run);
  }
  bool Becomes(uint64_t version, v1::VersionState state) {
    return Eventually([&] { return Versions()[version].state() == state; }, kPatience);
  }

  WeightStoreProcess leader_, host_;
  int requests_ = 0;
  std::unique_ptr<StandaloneLeader> standalone_;
  GrpcLeader* port_ = nullptr;
  std::unique_ptr<v1::WeightStoreService::Stub> stub_;
};

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_WEIGHTSTORE_HOSTS_H_
