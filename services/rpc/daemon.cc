// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/daemon.h"

#include <errno.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/base/check.h"
#include "core/base/exit_codes.h"
#include "core/base/hash.h"
#include "core/runtime/address.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/files.h"
#include "core/runtime/health.h"
#include "core/runtime/listen.h"
#include "core/runtime/log.h"
#include "core/runtime/shutdown.h"
#include "services/rpc/channel.h"

namespace titan::rpc {
namespace {

using google::protobuf::Message;
using runtime::LogLevel;

constexpr char kVersion[] = "0.1.0";

// A name that no earlier or later start of any process has: time, pid and the machine's randomness.
// Names an incarnation and nothing else; no result depends on it.
std::string MakeIncarnation() {
  std::random_device device;
  const uint64_t random = static_cast<uint64_t>(device()) << 32 | device();
  return ToHex(HashFields(random, static_cast<uint64_t>(SystemClock().UnixMs()),
                          static_cast<uint64_t>(getpid())));
}

// The smallest configuration that the daemon's own checks accept: the fields without a default, and
// of a worker the name that no other may have.
std::string ExampleConfig(const DaemonDefinition& definition) {
  ConfigProblems problems;
  definition.validate(*definition.config, &problems);
  const bool worker = std::any_of(
      problems.begin(), problems.end(),
      [](const ConfigProblem& problem) { return problem.path == "orchestrator_address"; });
  const std::string name = definition.role + (worker ? "-0" : "");
  std::string text = "{\"daemon\": {" + (worker ? "\"worker_id\": \"" + name + "\", " : "") +
                     "\"data_folder\": \"by-hand/" + name + "\"}";
  for (const ConfigProblem& problem : problems) {
    if (problem.path.find('.') != std::string::npos) continue;
    const bool address = problem.path.ends_with("_address");
    text += ", \"" + problem.path + "\": \"" +
            (address ? "127.0.0.1:PORT" : "by-hand/weightstore/ws.sock") + "\"";
  }
  return text + "}";
}

struct Flags {
  std::string config;
  std::string listen;
  std::string log_level;
  std::map<std::string, std::string> fields;  // by DaemonDefinition::flags
  bool check_config = false;
  bool print_config = false;
};

// Fills `flags`, or the exit code of a run that ends here.
std::optional<int> ParseFlags(int argc, const char* const* argv, const DaemonDefinition& definition,
                              Flags* flags) {
  CLI::App app(definition.description, "titan-" + definition.role);
  app.add_option("--config", flags->config, "Configuration file, strict JSON");
  app.add_option("--listen", flags->listen, "gRPC host:port, instead of the file's daemon.listen");
  for (const FieldFlag& flag : definition.flags) {
    app.add_option("--" + flag.field, flags->fields[flag.field], flag.help);
  }
  app.add_flag("--check_config", flags->check_config, "Check the configuration and exit");
  app.add_flag("--print_config", flags->print_config,
               "Print the resolved configuration and where each value came from, and exit");
  app.add_option("--log_level", flags->log_level, "debug, info, warning or error");
  app.set_version_flag("--version", std::string("titan-") + definition.role + " " + kVersion);
  app.set_help_flag("--help", "Print this help and exit");
  const std::string program = "titan-" + definition.role;
  app.footer("Example:\n  " + program + " --config " + definition.role + ".json\nwith " +
             definition.role + ".json:\n  " + ExampleConfig(definition) +
             "\nEvery field and its default: " + program +
             " --config FILE --print_config. A cluster on one machine needs no files: titanctl up");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  }
  return std::nullopt;
}

Status ResolveConfig(const Flags& flags, DaemonDefinition* definition, ConfigOrigins* origins) {
  Message* config = definition->config.get();
  ConfigProblems problems;
  if (!flags.config.empty()) {
    TITAN_RETURN_IF_ERROR(ReadConfigFile(flags.config, config, origins,
                                         ValidByCheck(*config, definition->validate), &problems));
  }
  config::v1::DaemonConfig* daemon = definition->daemon_of(config);
  if (!flags.listen.empty()) {
    daemon->set_listen(flags.listen);
    origins->SetFromFlag("daemon.listen", "--listen");
  }
  for (const auto& [name, value] : flags.fields) {
    if (value.empty()) continue;
    config->GetReflection()->SetString(config, config->GetDescriptor()->FindFieldByName(name),
                                       value);
    origins->SetFromFlag(name, "--" + name);
  }
  if (!flags.log_level.empty()) {
    daemon->set_log_level(flags.log_level);
    origins->SetFromFlag("daemon.log_level", "--log_level");
  }
  ConfigProblems of_values;
  definition->validate(*config, &of_values);
  AddProblems(std::move(of_values), &problems);
  return ProblemsToStatus(problems, *origins);
}

// Runs a coroutine on the control strand and waits for it here (never called from the strand).
template <typename T>
T RunOn(asio::io_context& io, std::function<asio::awaitable<T>()> body, T on_exception) {
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  auto kept = std::make_shared<std::function<asio::awaitable<T>()>>(std::move(body));
  asio::post(io, [&io, kept, promise, on_exception] {
    asio::co_spawn(io, (*kept)(),
                   [kept, promise, on_exception](std::exception_ptr failure, T value) {
                     promise->set_value(failure ? on_exception : std::move(value));
                   });
  });
  return future.get();
}

// One running daemon; the members are in the order in which they are made.
class Runner {
 public:
  Runner(DaemonDefinition definition, ConfigOrigins origins, runtime::ShutdownSignal& signal)
      : definition_(std::move(definition)),
        origins_(std::move(origins)),
        daemon_(*definition_.daemon_of(definition_.config.get())),
        signal_(signal),
        delay_(daemon_.debug().rpc_delay_max_ms(), daemon_.debug().rpc_delay_seed()),
        server_calls_(io_.get_executor(), delay_),
        client_(io_.get_executor(),
                DebugDelay(daemon_.debug().rpc_delay_max_ms(), ~daemon_.debug().rpc_delay_seed())),
        context_{io_.get_executor(),
                 server_calls_,
                 client_,
                 blocking_,
                 metrics_,
                 clock_,
                 daemon_,
                 MakeIncarnation(),
                 definition_.worker_role,
                 [this] { return Address(); },
                 [this](bool ready, const std::string& reason) { SetReady(ready, reason); },
                 [this](const Status& reason) { signal_.Request(reason); }} {}

  int Run() {
    const Status started = Start();
    if (!started.ok()) {
      TITAN_LOG(kError, "start_failed", {"status", started});
      std::cerr << "titan-" << definition_.role << ": " << MessageOf(started) << std::endl;
      signal_.Request(started);
    }
    const Status reason = signal_.Wait();
    const int code = ExitCodeOfEnd(reason);
    if (!reason.ok() && started.ok()) TITAN_LOG(kError, "failed", {"status", reason});
    Shutdown();
    TITAN_LOG(kInfo, "stopped", {"exit_code", code});
    return code;
  }

 private:
  std::string Address() const {
    std::lock_guard lock(mutex_);
    return endpoint_.address;
  }

  void SetReady(bool ready, const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (health_ != nullptr) health_->SetReady(ready, reason);
    if (ready != ready_) TITAN_LOG(kInfo, "ready_changed", {"ready", ready}, {"reason", reason});
    ready_ = ready;
  }

  Status Start() {
    TITAN_RETURN_IF_ERROR(runtime::MakeWritableFolder(daemon_.data_folder()));
    auto health = runtime::HealthListener::Create(daemon_.health_listen(), metrics_);
    if (!health.ok()) return AtField("daemon.health_listen", health.status());
    health_ = *std::move(health);
    control_thread_ = std::jthread([this] { io_.run(); });
    StatusOr<std::unique_ptr<DaemonService>> made = Internal("not made");
    RunOn<bool>(
        io_,
        [this, &made]() -> asio::awaitable<bool> {
          made = definition_.create(*definition_.config, context_);
          co_return true;
        },
        false);
    if (!made.ok()) return made.status();
    service_ = *std::move(made);
    TITAN_RETURN_IF_ERROR(Listen());
    TITAN_RETURN_IF_ERROR(runtime::WriteEndpoint(daemon_.data_folder(), endpoint_));
    TITAN_LOG(kInfo, "listening", {"address", endpoint_.address},
              {"health_address", endpoint_.health_address}, {"pid", endpoint_.pid},
              {"incarnation", endpoint_.incarnation});
    return RunOn<Status>(
        io_, [this] { return service_->Start(); },
        Internal("an exception left DaemonService::Start"));
  }

  // `status` with the field and the place of its value.
  Status AtField(const std::string& path, const Status& status) const {
    const std::string at = origins_.IsDefault(path) ? "" : origins_.Of(path) + ": ";
    return Annotate(status, at + path);
  }

  Status Listen() {
    TITAN_ASSIGN_OR_RETURN(runtime::HostPort address, runtime::ParseHostPort(daemon_.listen()));
    // gRPC would say why it cannot in a line for its developers, and not tell us.
    if (const int error = runtime::TryListen(address); error != 0) {
      return AtField("daemon.listen", runtime::CannotListen(address, error));
    }
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(daemon_.listen(), grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    for (grpc::Service* service : service_->services()) builder.RegisterService(service);
    grpc_ = builder.BuildAndStart();
    if (grpc_ == nullptr || port == 0) {
      return AtField("daemon.listen", runtime::CannotListen(address, EADDRINUSE));
    }
    address.port = static_cast<uint16_t>(port);
    std::lock_guard lock(mutex_);
    endpoint_ = {
        daemon_.worker_id(),       definition_.role,         context_.incarnation, getpid(),
        runtime::ExecutablePath(), runtime::ToText(address), health_->address()};
    return OkStatus();
  }

  // The sequence stands in daemon.h.
  void Shutdown() {
    const std::chrono::milliseconds deadline(daemon_.shutdown_deadline_ms());
    runtime::ShutdownWatchdog watchdog(deadline);
    SetReady(false, "shutting down");
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    if (!endpoint_.worker_id.empty()) runtime::RemoveEndpoint(daemon_.data_folder(), endpoint_);
    if (service_ != nullptr) {
      RunOn<bool>(
          io_,
          [this]() -> asio::awaitable<bool> {
            co_await service_->Drain();
            co_return true;
          },
          false);
    }
    if (grpc_ != nullptr) {
      // Shutdown waits for the handlers; those that outlast the grace are cancelled from here.
      std::jthread canceller([this, deadline](std::stop_token stop) {
        std::mutex mutex;
        std::condition_variable_any changed;
        std::unique_lock lock(mutex);
        changed.wait_for(lock, stop, deadline / 2, [] { return false; });
        if (stop.stop_requested()) return;
        client_.CancelAll();
        server_calls_.CancelAll();
      });
      grpc_->Shutdown(std::chrono::system_clock::now() + deadline / 2);
      grpc_->Wait();
    }
    client_.CancelAll();
    client_.WaitIdle(deadline);
    blocking_.Stop();
    work_.reset();
    server_calls_.CancelAll();
    if (control_thread_.joinable()) {
      asio::post(io_, [this] { io_.stop(); });
      control_thread_.join();
    }
    service_.reset();
    grpc_.reset();
    health_.reset();
  }

  DaemonDefinition definition_;
  const ConfigOrigins origins_;
  const config::v1::DaemonConfig daemon_;
  runtime::ShutdownSignal& signal_;
  SystemClock clock_;
  runtime::Metrics metrics_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  const DebugDelay delay_;
  RpcServer server_calls_;
  RpcClient client_;
  runtime::BlockingPool blocking_;
  std::unique_ptr<runtime::HealthListener> health_;
  DaemonContext context_;
  std::unique_ptr<DaemonService> service_;
  std::unique_ptr<grpc::Server> grpc_;
  mutable std::mutex mutex_;  // of the three below
  runtime::Endpoint endpoint_;
  bool stopping_ = false;
  bool ready_ = false;
  std::jthread control_thread_;
};

}  // namespace

type::v1::WorkerIdentity DaemonContext::Identity() const {
  type::v1::WorkerIdentity identity;
  identity.set_worker_id(daemon.worker_id());
  identity.set_incarnation(incarnation);
  identity.set_role(role);
  identity.set_address(address());
  identity.set_pid(getpid());
  TITAN_CHECK(!identity.address().empty());
  return identity;
}

int RunDaemon(int argc, const char* const* argv, DaemonDefinition definition) {
  runtime::ShutdownSignal signal;  // before any other thread
  Flags flags;
  if (const auto code = ParseFlags(argc, argv, definition, &flags); code.has_value()) return *code;
  ConfigOrigins origins;
  const Status resolved = ResolveConfig(flags, &definition, &origins);
  if (!resolved.ok()) {
    const std::string program = "titan-" + definition.role;
    std::cerr << MessageOf(resolved) << std::endl;
    if (flags.config.empty()) {
      std::cerr << program << " wants a configuration: " << program << " --config "
                << definition.role << ".json, with for example\n  " << ExampleConfig(definition)
                << "\nor start a whole cluster on this machine: titanctl up" << std::endl;
    }
    return kExitUsage;
  }
  for (const std::string& warning : definition.warnings(*definition.config)) {
    std::cerr << "warning: " << warning << std::endl;
  }
  if (flags.print_config) {
    std::cout << PrintConfig(*definition.config, origins) << std::flush;
    return kExitOk;
  }
  if (flags.check_config) {
    std::cout << "config ok" << std::endl;
    return kExitOk;
  }
  const config::v1::DaemonConfig& daemon = *definition.daemon_of(definition.config.get());
  const auto level = runtime::ParseLogLevel(daemon.log_level());
  TITAN_CHECK(level.ok());  // ResolveConfig checked it
  runtime::InitLog({.level = *level, .worker = daemon.worker_id()});
  Runner runner(std::move(definition), std::move(origins), signal);
  return runner.Run();
}

}  // namespace titan::rpc
