// SPDX-License-Identifier: Apache-2.0
//
// titan-weightstore, the real program, in a folder of its own, and clients of it over gRPC and its
// unix socket. Test code.
#ifndef TITAN_TESTS_SUPPORT_WEIGHTSTORE_DAEMON_H_
#define TITAN_TESTS_SUPPORT_WEIGHTSTORE_DAEMON_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/runtime/endpoint.h"
#include "core/runtime/health.h"
#include "services/rpc/channel.h"
#include "services/weightstore_client/standalone_leader.h"
#include "tests/support/child_process.h"
#include "tests/support/weightstore.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"
#include "weightstore/client/publisher.h"

namespace titan::weightstore::testing {

// The memory files that a process has open, each with the bytes of its pages. A slot is two: its
// bytes and its header.
inline std::map<std::string, uint64_t> MemoryFiles(pid_t pid) {
  std::map<std::string, uint64_t> files;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code ignored;
    const std::string name = std::filesystem::read_symlink(entry, ignored).string();
    struct stat file = {};
    if (!name.starts_with("/memfd:") || stat(entry.path().c_str(), &file) != 0) continue;
    files[name] = static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return files;
}

// All versions of a run, by number.
inline std::map<uint64_t, v1::VersionInfo> VersionsOf(v1::WeightStoreService::StubInterface& stub,
                                                      const std::string& run) {
  std::map<uint64_t, v1::VersionInfo> versions;
  v1::ListVersionsRequest request;
  request.set_run_id(run);
  for (;;) {
    grpc::ClientContext context;
    v1::ListVersionsResponse page;
    const grpc::Status status = stub.ListVersions(&context, request, &page);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (v1::VersionInfo& info : *page.mutable_versions()) versions[info.version()] = info;
    if (page.next_version() == 0) return versions;
    request.set_from_version(page.next_version());
  }
}

// The process. The folder stays over restarts and goes with this object.
class WeightStoreProcess {
 public:
  WeightStoreProcess() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan_wsd_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(data_folder());
  }
  ~WeightStoreProcess() {
    process_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Returns once it serves; false: it ended instead, see exit_code and log.
  bool Start() {
    std::ofstream(folder_ + "/config.json")
        << R"({"daemon": {"data_folder": ")" << data_folder() << '"' << more_daemon_config
        << R"(}, "role": ")" << role << '"'
        << (role == "leader" ? "" : R"(, "memory_limit_bytes": 67108864)") << more_config << "}";
    std::filesystem::remove(runtime::EndpointPath(data_folder(), "weightstore"));
    std::vector<std::string> command = {std::string(TITAN_BINARY_DIR) + "/bin/titan-weightstore",
                                        "--config", folder_ + "/config.json"};
    command.insert(command.end(), more_arguments.begin(), more_arguments.end());
    process_.emplace(command, log_path(), before_exec);
    address_.clear();
    titan::testing::Eventually(
        [&] {
          const auto endpoint = runtime::ReadEndpoint(data_folder(), "weightstore");
          if (endpoint.ok()) address_ = endpoint->address;
          return endpoint.ok() || process_->Ended(&exit_code_);
        },
        std::chrono::milliseconds(60'000));
    return !address_.empty();
  }
  // Sends the signal and waits: the exit code, or the signal negated.
  int End(int signal) {
    process_->Signal(signal);
    exit_code_ = process_->Wait();
    return exit_code_;
  }
  // A host is attached to its leader.
  bool IsReady() const {
    const auto endpoint = runtime::ReadEndpoint(data_folder(), "weightstore");
    if (!endpoint.ok()) return false;
    const auto answer =
        runtime::GetHealth(endpoint->health_address, "/readyz", std::chrono::milliseconds(5'000));
    return answer.ok() && answer->http_status == 200;
  }
  // Waits for it; false: it ended instead, or is not ready for a minute.
  bool GetsReady() {
    bool ended = false;
    return titan::testing::Eventually(
               [&] {
                 ended = process_->Ended(&exit_code_);
                 return ended || IsReady();
               },
               std::chrono::milliseconds(60'000)) &&
           !ended;
  }
  titan::testing::ChildProcess& process() { return *process_; }

  const std::string& folder() const { return folder_; }
  std::string data_folder() const { return folder_ + "/data"; }
  std::string socket_path() const { return data_folder() + "/ws.sock"; }
  std::string log_path() const { return folder_ + "/log"; }
  const std::string& address() const { return address_; }
  int exit_code() const { return exit_code_; }
  // What it has said since the first start.
  std::string log() const {
    std::ostringstream text;
    text << std::ifstream(log_path()).rdbuf();
    return text.str();
  }

  // Of the next Start: members of the configuration and of its `daemon`, each after a comma, and
  // what runs in the child.
  std::string role = "both";
  std::string more_config, more_daemon_config;
  std::vector<std::string> more_arguments;
  std::function<void()> before_exec;

 private:
  std::string folder_, address_;
  int exit_code_ = 0;
  std::optional<titan::testing::ChildProcess> process_;
};

// A running daemon with clients in this process.
class WeightStoreDaemonTest : public ::testing::Test {
 protected:
  WeightStoreDaemonTest() { Start(); }

  void Start() {
    ASSERT_TRUE(store_.Start()) << store_.exit_code() << "\n" << store_.log();
    Connect();
  }
  void Connect() {
    auto standalone = StandaloneLeader::Create(store_.address());
    ASSERT_TRUE(standalone.ok()) << standalone.status();
    standalone_ = *std::move(standalone);
    leader_ = &standalone_->port();
    stub_ = v1::WeightStoreService::NewStub(*rpc::MakeChannel(store_.address()));
  }
  int End(int signal) { return store_.End(signal); }
  std::string socket_path() const { return store_.socket_path(); }
  std::string data_folder() const { return store_.data_folder(); }

  StatusOr<std::unique_ptr<Publisher>> Register(uint32_t max_age = 1,
                                                Manifest manifest = SmallManifest()) {
    return Publisher::Register(*leader_, {.socket_path = socket_path(),
                                          .run_id = "run",
                                          .request_id = "r" + std::to_string(++requests_),
                                          .manifest = std::move(manifest),
                                          .max_age = max_age});
  }
  Hash128 Publish(Publisher& publisher, uint64_t version) {
    const auto begun = publisher.Begin(version, std::chrono::milliseconds(2000));
    EXPECT_TRUE(begun.ok()) << begun.status();
    if (!begun.ok()) return {};
    Fill(begun->bytes, version);
    const auto digest = publisher.Finish();
    EXPECT_TRUE(digest.ok()) << digest.status();
    const auto committed = publisher.Commit("plan", version);
    EXPECT_TRUE(committed.ok()) << committed.status();
    return digest.ok() ? *digest : Hash128{};
  }

  WeightStoreProcess store_;
  int requests_ = 0;
  std::unique_ptr<StandaloneLeader> standalone_;
  GrpcLeader* leader_ = nullptr;  // of the running daemon
  std::unique_ptr<v1::WeightStoreService::Stub> stub_;
};

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_WEIGHTSTORE_DAEMON_H_
