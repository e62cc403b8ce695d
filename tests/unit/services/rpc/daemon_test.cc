// SPDX-License-Identifier: Apache-2.0
// Goal: the daemon frame: frozen flags, exit codes, listeners and endpoint file of a running
// daemon, a worker that registers and comes back when it was forgotten, and a shutdown that ends in
// time although a handler hangs. Method: RunDaemon in this process; the daemon's own Start script
// drives it and asks for its end.
#include "services/rpc/daemon.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "core/runtime/endpoint.h"
#include "core/runtime/files.h"
#include "core/runtime/health.h"
#include "core/runtime/log.h"
#include "core/runtime/machine.h"
#include "services/rpc/channel.h"
#include "services/rpc/worker.h"
#include "services/settings/shared.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"

namespace titan::rpc {
namespace {

using config::v1::RewardConfig;
using namespace orchestrator::v1;  // NOLINT: the test speaks of little else
using Async = OrchestratorService::StubInterface::async_interface;

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_daemon_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    runtime::InitLog({});
    std::filesystem::remove_all(folder_);
  }

  std::string WriteConfig(const std::string& text) {
    const std::string path = folder_ + "/config.json";
    std::ofstream(path) << text;
    return path;
  }

  std::string folder_;
};

using Script = std::function<asio::awaitable<Status>(DaemonContext&)>;

// An orchestrator of sorts: job "stuck" never answers, workers are counted, one heartbeat is
// "forgotten".
class TestService final : public DaemonService, public OrchestratorService::CallbackService {
 public:
  TestService(DaemonContext& context, Script script)
      : context_(context), script_(std::move(script)) {
    current = this;
  }

  std::vector<grpc::Service*> services() override { return {this}; }
  asio::awaitable<Status> Start() override { return script_(context_); }
  asio::awaitable<void> Drain() override {
    drained = true;
    if (agent != nullptr) co_await agent->Stop();
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const GetJobRequest* request,
                                   GetJobResponse* response) override {
    return ServeUnary(context_.server, context, request, response,
                      [this](GetJobRequest r) { return Get(std::move(r)); });
  }
  grpc::ServerUnaryReactor* RegisterWorker(grpc::CallbackServerContext* context,
                                           const RegisterWorkerRequest* request,
                                           RegisterWorkerResponse* response) override {
    return ServeUnaryThen(
        context_.server, context, request, response,
        [](RegisterWorkerRequest r, std::function<void(StatusOr<RegisterWorkerResponse>)> reply) {
          ++registrations;
          last_worker = r.worker();
          last_machine = r.machine();
          if (refuse) {
            reply(FailedPrecondition("contract item linear.leaves differs"));
            return;
          }
          RegisterWorkerResponse response;
          response.set_orchestrator_epoch(9);
          response.set_heartbeat_ms(20);
          reply(response);
        });
  }
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const HeartbeatRequest* request,
                                      HeartbeatResponse* response) override {
    return ServeUnaryThen(
        context_.server, context, request, response,
        [](const HeartbeatRequest&, std::function<void(StatusOr<HeartbeatResponse>)> reply) {
          if (++heartbeats == 3) {
            reply(NotFound("who are you"));
          } else {
            reply(HeartbeatResponse());
          }
        });
  }

  static inline int registrations = 0;
  static inline int heartbeats = 0;
  static inline bool refuse = false;
  static inline bool drained = false;
  static inline type::v1::WorkerIdentity last_worker;
  static inline std::string last_machine;
  static inline TestService* current = nullptr;
  std::unique_ptr<WorkerAgent> agent;

 private:
  asio::awaitable<StatusOr<GetJobResponse>> Get(GetJobRequest request) {
    if (request.job_id() == "stuck") {
      asio::steady_timer timer(context_.control, std::chrono::hours(1));
      co_await timer.async_wait(asio::use_awaitable);
    }
    co_return GetJobResponse();
  }

  DaemonContext& context_;
  Script script_;
};

int RunTestDaemon(const std::vector<std::string>& arguments, Script script = {}) {
  TestService::registrations = TestService::heartbeats = 0;
  TestService::refuse = TestService::drained = false;
  DaemonSpec<RewardConfig> spec;
  spec.role = "reward";
  spec.description = "A daemon of this test.";
  spec.worker_role = type::v1::WORKER_ROLE_REWARD;
  spec.fill_defaults = [](RewardConfig* config) {
    settings::FillDaemonDefaults("reward", config->mutable_daemon());
    config->set_max_batch_items(7);
  };
  spec.validate = [](const RewardConfig& config, ConfigProblems* problems) {
    settings::ValidateDaemon(config.daemon(), problems);
    if (config.max_batch_items() == 0) problems->push_back({"max_batch_items", "wants at least 1"});
  };
  spec.create = [script](const RewardConfig&,
                         DaemonContext& context) -> StatusOr<std::unique_ptr<DaemonService>> {
    return std::unique_ptr<DaemonService>(new TestService(context, script));
  };
  std::vector<const char*> argv = {"titan-reward"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  // A thread of its own: RunDaemon blocks the end signals in the thread that calls it.
  int code = -1;
  std::thread([&] { code = DaemonMain(static_cast<int>(argv.size()), argv.data(), spec); }).join();
  return code;
}

TEST_F(DaemonTest, FlagsAreFrozen) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunTestDaemon({"--help"}), 0);
  const std::string help = ::testing::internal::GetCapturedStdout();
  std::set<std::string> flags;
  const std::regex flag("--[a-z_]+");
  for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at)
    flags.insert(at->str());
  EXPECT_EQ(flags, (std::set<std::string>{"--config", "--listen", "--check_config",
                                          "--print_config", "--log_level", "--version", "--help"}));
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunTestDaemon({"--version"}), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "titan-reward 0.1.0\n");
}

TEST_F(DaemonTest, WrongFlagsAndConfigsEndWithCodeTwo) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunTestDaemon({"--confg", "x"}), 2);
  EXPECT_EQ(RunTestDaemon({"--config", folder_ + "/none.json"}), 2);
  EXPECT_EQ(RunTestDaemon({"--config",
                           WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ +
                                       "\"},\n\"max_batch_items\": 0}"),
                           "--check_config"}),
            2);
  EXPECT_EQ(RunTestDaemon({"--config",
                           WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ + "\"}}"),
                           "--listen", "0.0.0.0:0", "--check_config"}),
            2);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(errors.find("config.json:2:20: max_batch_items: wants at least 1"), std::string::npos)
      << errors;
  EXPECT_NE(errors.find("flag --listen: daemon.listen: '0.0.0.0:0' is not on loopback"),
            std::string::npos)
      << errors;
}

TEST_F(DaemonTest, WithoutAConfigurationItSaysWhatOneLooksLike) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunTestDaemon({}), 2);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(errors.find("titan-reward --config reward.json"), std::string::npos) << errors;
  const std::string example = "{\"daemon\": {\"data_folder\": \"by-hand/reward\"}}";
  EXPECT_NE(errors.find(example), std::string::npos) << errors;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunTestDaemon({"--config", WriteConfig(example), "--check_config"}), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "config ok\n");
}

TEST_F(DaemonTest, CheckAndPrintDoNotStartAnything) {
  const std::string config =
      WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ + "/data\"}}");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunTestDaemon({"--config", config, "--check_config"}), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "config ok\n");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunTestDaemon({"--config", config, "--print_config", "--log_level", "debug"}), 0);
  const auto printed = nlohmann::json::parse(::testing::internal::GetCapturedStdout());
  EXPECT_EQ(printed["config"]["max_batch_items"], 7);
  EXPECT_EQ(printed["origins"]["max_batch_items"], "default");
  EXPECT_EQ(printed["origins"]["daemon.log_level"], "flag --log_level");
  EXPECT_EQ(printed["origins"]["daemon.data_folder"], config + ":1:28");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/data"));
}

TEST_F(DaemonTest, RunningDaemonIsFoundAndItsWorkerComesBack) {
  const std::string config = WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ +
                                         "\", \"worker_id\": \"reward-7\"}}");
  runtime::Endpoint endpoint;
  std::vector<uint64_t> epochs;
  ::testing::internal::CaptureStderr();
  const int code =
      RunTestDaemon({"--config", config}, [&](DaemonContext& context) -> asio::awaitable<Status> {
        endpoint = *runtime::ReadEndpoint(folder_, "reward-7");
        EXPECT_EQ(endpoint.address, context.address());
        EXPECT_EQ(
            runtime::GetHealth(endpoint.health_address, "/readyz", Milliseconds(1000))->http_status,
            503);
        WorkerAgent::Options options;
        options.orchestrator_address = context.address();
        options.registration.add_graders("numeric_match");
        // The second registration follows the forgotten heartbeat; then the daemon has shown
        // enough.
        options.on_registered = [&](uint64_t epoch) {
          epochs.push_back(epoch);
          if (epochs.size() == 2) context.request_shutdown(OkStatus());
        };
        auto agent = WorkerAgent::Create(context, options);
        EXPECT_TRUE(agent.ok());
        TestService::current->agent = *std::move(agent);
        TestService::current->agent->Start();
        co_return OkStatus();
      });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 0) << log;
  EXPECT_EQ(epochs, (std::vector<uint64_t>{9, 9}));
  EXPECT_TRUE(TestService::drained);
  EXPECT_EQ(TestService::last_worker.worker_id(), "reward-7");
  EXPECT_EQ(TestService::last_machine, runtime::MemoryName());
  EXPECT_EQ(TestService::last_worker.role(), type::v1::WORKER_ROLE_REWARD);
  EXPECT_EQ(TestService::last_worker.incarnation(), endpoint.incarnation);
  EXPECT_FALSE(std::filesystem::exists(runtime::EndpointPath(folder_, "reward-7")));
  EXPECT_NE(log.find("\"worker\":\"reward-7\",\"event\":\"registered\""), std::string::npos) << log;
}

TEST_F(DaemonTest, RefusedWorkerEndsWithTheReason) {
  const std::string config = WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ + "\"}}");
  ::testing::internal::CaptureStderr();
  const int code =
      RunTestDaemon({"--config", config}, [&](DaemonContext& context) -> asio::awaitable<Status> {
        TestService::refuse = true;
        auto agent = WorkerAgent::Create(context, {context.address(), {}, {}});
        TestService::current->agent = *std::move(agent);
        TestService::current->agent->Start();
        co_return OkStatus();
      });
  EXPECT_EQ(code, 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("linear.leaves differs"),
            std::string::npos);
}

TEST_F(DaemonTest, ShutdownCancelsHangingHandlersInTime) {
  const std::string config = WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ +
                                         "\", \"shutdown_deadline_ms\": 1000}}");
  StatusCode stuck = StatusCode::kOk;
  std::unique_ptr<OrchestratorService::StubInterface> stub;
  const auto start = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  const int code =
      RunTestDaemon({"--config", config}, [&](DaemonContext& context) -> asio::awaitable<Status> {
        stub = OrchestratorService::NewStub(*MakeChannel(context.address()));
        GetJobRequest request;
        request.set_job_id("stuck");
        CallUnaryThen(context.client, *stub, &Async::GetJob, request, Milliseconds(60000),
                      [&](StatusOr<GetJobResponse> response) { stuck = response.status().code(); });
        const auto answer = co_await CallUnary(context.client, *stub, &Async::GetJob,
                                               GetJobRequest(), Milliseconds(5000));
        EXPECT_TRUE(answer.ok());  // so the stuck one has arrived as well
        context.request_shutdown(OkStatus());
        co_return OkStatus();
      });
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 0);
  EXPECT_NE(stuck, StatusCode::kOk);
  EXPECT_LT(std::chrono::steady_clock::now() - start, Milliseconds(5000));
}

TEST_F(DaemonTest, APortInUseIsNamedWithFieldPlaceAndFixAndNothingElseIsPrinted) {
  // A listener of this test on a free port, which it tells by its address.
  runtime::Metrics metrics;
  const auto holder = runtime::HealthListener::Create("127.0.0.1:0", metrics);
  ASSERT_TRUE(holder.ok());
  const std::string taken = (*holder)->address();
  for (const std::string field : {"listen", "health_listen"}) {
    const std::string config = WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ +
                                           "\",\n\"" + field + "\": \"" + taken + "\"}}");
    bool started = false;
    ::testing::internal::CaptureStderr();
    const int code =
        RunTestDaemon({"--config", config}, [&](DaemonContext& context) -> asio::awaitable<Status> {
          started = true;
          context.request_shutdown(OkStatus());
          co_return OkStatus();
        });
    const std::string errors = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 1);
    EXPECT_FALSE(started);
    EXPECT_NE(errors.find("titan-reward: " + config + ":2:" + std::to_string(field.size() + 5) +
                          ": daemon." + field + ": cannot listen on " + taken +
                          ": Address already in use; choose another port (0 takes a free one) or "
                          "stop the process that holds this one\n"),
              std::string::npos)
        << errors;
    for (size_t line = 0; line < errors.size(); line = errors.find('\n', line) + 1) {
      EXPECT_TRUE(errors[line] == '{' || errors.compare(line, 13, "titan-reward:") == 0) << errors;
    }
  }
  ::testing::internal::CaptureStderr();
  RunTestDaemon({"--listen", "127.0.0.1:1", "--config",
                 WriteConfig("{\"daemon\": {\"data_folder\": \"" + folder_ + "\"}}")},
                [&](DaemonContext& context) -> asio::awaitable<Status> {
                  context.request_shutdown(OkStatus());  // the superuser may have port 1
                  co_return OkStatus();
                });
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("chttp2"), std::string::npos);
}

}  // namespace
}  // namespace titan::rpc
