// SPDX-License-Identifier: Apache-2.0
//
// What every daemon shares: flags, configuration, log, metrics, listeners, endpoint file, shutdown.
//
// Threads: gRPC's callback threads (validate, convert, post); the control strand, one thread that
// owns the daemon's mutable state (DaemonContext::control); a small blocking pool; the health
// listener's thread; the daemon's own engine thread if it has one.
//
// Start: flags, config, log -> DaemonSpec::create on the control strand -> gRPC listener ->
// endpoint file -> DaemonService::Start on the control strand (registers with the orchestrator,
// say). The daemon calls context.SetReady.
//
// Shutdown, begun by SIGTERM, SIGINT or context.RequestShutdown, cut off after shutdown_deadline_ms
// (exit 70):
//   1. /readyz says "shutting down"; the endpoint file is removed
//   2. DaemonService::Drain on the control strand: no new work, end the streams, stop own threads
//   3. the gRPC server stops accepting; calls get half the deadline to end, then they are cancelled
//   4. handler coroutines and outgoing calls still there are cancelled
//   5. blocking pool, control strand, DaemonService, health listener end, in this order
// Exit code 0 after a signal, 1 when a daemon asked for it with a failure, 2 for flags or config, 8
// when what it has stored is damaged.
#ifndef TITAN_SERVICES_RPC_DAEMON_H_
#define TITAN_SERVICES_RPC_DAEMON_H_

#include <google/protobuf/message.h>
#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/runtime/blocking_pool.h"
#include "core/runtime/metrics.h"
#include "services/rpc/config.h"
#include "services/rpc/rpc_client.h"
#include "services/rpc/rpc_server.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/type/v1/types.pb.h"

namespace titan::rpc {

// What a daemon gets. Outlives its DaemonService. Everything is thread-safe.
struct DaemonContext {
  asio::any_io_executor control;  // the control strand
  RpcServer& server;
  RpcClient& client;
  runtime::BlockingPool& blocking;
  runtime::Metrics& metrics;
  const Clock& clock;
  const config::v1::DaemonConfig& daemon;  // resolved
  std::string incarnation;                 // new at each start
  type::v1::WorkerRole role;
  std::function<std::string()> address;  // host:port of gRPC; empty before it listens
  std::function<void(bool ready, std::string reason)> set_ready;
  std::function<void(Status reason)> request_shutdown;  // OK: ordinary end

  // The identity to register with. REQUIRES: the listener is up (from Start on).
  type::v1::WorkerIdentity Identity() const;
};

// One daemon. Made, started, drained and destroyed on the control strand's terms (see above).
class DaemonService {
 public:
  virtual ~DaemonService() = default;
  // The gRPC services; they live as long as this object.
  virtual std::vector<grpc::Service*> services() = 0;
  // The listener is up. A failure ends the daemon with its exit code.
  virtual asio::awaitable<Status> Start() = 0;
  virtual asio::awaitable<void> Drain() = 0;
};

// A flag of one daemon, for a text field at the top of its config.
struct FieldFlag {
  std::string field;  // "role": the flag is --role
  std::string help;
};

// What DaemonMain needs to know, typed by the daemon's config message, which has `daemon` as a
// field.
template <typename Config>
struct DaemonSpec {
  std::string role;         // "generator": default worker id; the program is titan-<role>
  std::string description;  // one sentence for --help
  type::v1::WorkerRole worker_role = type::v1::WORKER_ROLE_UNSPECIFIED;
  // What services/settings says of the message, `daemon` included.
  std::function<void(Config*)> fill_defaults;
  std::function<void(const Config&, ConfigProblems*)> validate;
  std::function<std::vector<std::string>(const Config&)> warnings;  // set, but without effect
  std::vector<FieldFlag> flags;                                     // besides those of all daemons
  // On the control strand. `context` outlives the service.
  std::function<StatusOr<std::unique_ptr<DaemonService>>(const Config&, DaemonContext& context)>
      create;
};

// The untyped form behind DaemonMain.
struct DaemonDefinition {
  std::string role;
  std::string description;
  type::v1::WorkerRole worker_role;
  std::unique_ptr<google::protobuf::Message> config;  // filled with defaults
  std::function<config::v1::DaemonConfig*(google::protobuf::Message*)> daemon_of;
  std::function<void(const google::protobuf::Message&, ConfigProblems*)> validate;
  std::function<std::vector<std::string>(const google::protobuf::Message&)> warnings;
  std::vector<FieldFlag> flags;
  std::function<StatusOr<std::unique_ptr<DaemonService>>(const google::protobuf::Message&,
                                                         DaemonContext&)>
      create;
};

int RunDaemon(int argc, const char* const* argv, DaemonDefinition definition);

// main() of a daemon: `return rpc::DaemonMain<config::v1::GeneratorConfig>(argc, argv, spec);`
template <typename Config>
int DaemonMain(int argc, const char* const* argv, DaemonSpec<Config> spec) {
  DaemonDefinition definition;
  definition.role = spec.role;
  definition.description = spec.description;
  definition.worker_role = spec.worker_role;
  auto config = std::make_unique<Config>();
  if (spec.fill_defaults) spec.fill_defaults(config.get());
  definition.config = std::move(config);
  definition.daemon_of = [](google::protobuf::Message* message) {
    return static_cast<Config*>(message)->mutable_daemon();
  };
  definition.validate = [validate = spec.validate](const google::protobuf::Message& message,
                                                   ConfigProblems* problems) {
    if (validate) validate(static_cast<const Config&>(message), problems);
  };
  definition.warnings = [warnings = spec.warnings](const google::protobuf::Message& message) {
    return warnings ? warnings(static_cast<const Config&>(message)) : std::vector<std::string>();
  };
  definition.flags = spec.flags;
  definition.create = [create = spec.create](const google::protobuf::Message& message,
                                             DaemonContext& context) {
    return create(static_cast<const Config&>(message), context);
  };
  return RunDaemon(argc, argv, std::move(definition));
}

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_DAEMON_H_
