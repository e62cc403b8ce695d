// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/cluster.h"

#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "clients/cluster/cluster_config.h"
#include "clients/cluster/preflight.h"
#include "clients/cluster/terminal.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/exit_codes.h"
#include "core/runtime/files.h"
#include "core/runtime/health.h"
#include "core/runtime/log.h"

namespace titan::cluster {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPoll{50};
constexpr seconds kStartDeadline{60};
constexpr seconds kKillMargin{2};  // beyond a daemon's own shutdown deadline
constexpr int kLogLinesInErrors = 8;

milliseconds ShutdownDeadline(const config::v1::DaemonConfig& daemon) {
  return milliseconds(daemon.shutdown_deadline_ms());
}

// "user 'ann'", or what is known of it.
std::string OwnerOf(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return "another user";
  const passwd* user = getpwuid(info.st_uid);
  return "user " +
         (user != nullptr ? "'" + std::string(user->pw_name) + "'" : std::to_string(info.st_uid));
}

}  // namespace

std::string LockPath(const std::string& data_folder) { return data_folder + "/cluster.lock"; }
std::string SupervisorPath(const std::string& data_folder) {
  return data_folder + "/supervisor.json";
}
std::string EndpointsPath(const std::string& data_folder) {
  return data_folder + "/endpoints.json";
}

std::string UpCommand(const std::string& data_folder) {
  std::string command = "titanctl up --data " + ShellWord(data_folder);
  const auto text = runtime::ReadFile(SupervisorPath(data_folder), 64u << 20);
  const auto json = text.ok() ? Json::parse(*text, nullptr, false) : Json();
  if (!json.is_object() || !json.contains("up_options") || !json["up_options"].is_array()) {
    return command;
  }
  for (const auto& word : json["up_options"]) {
    if (word.is_string()) command += " " + ShellWord(word.get<std::string>());
  }
  return command;
}

std::string RestartCommand(const std::string& data_folder) {
  return "titanctl down --data " + ShellWord(data_folder) + " && " + UpCommand(data_folder);
}

Status CheckAccess(const std::string& data_folder) {
  if (access(LockPath(data_folder).c_str(), R_OK | W_OK) == 0 || errno != EACCES) return OkStatus();
  return MakeStatus(StatusCode::kPermissionDenied,
                    "the cluster in '" + data_folder + "' belongs to " +
                        OwnerOf(LockPath(data_folder)) + "; run this as the user who started it");
}

Status CheckOwner(const std::string& data_folder) {
  std::error_code unknown;
  if (std::filesystem::exists(data_folder, unknown) &&
      !std::filesystem::is_directory(data_folder, unknown)) {
    return InvalidArgument("'" + data_folder + "' is a file; --data wants a folder");
  }
  TITAN_RETURN_IF_ERROR(CheckAccess(data_folder));
  if (access(data_folder.c_str(), W_OK | X_OK) == 0 || errno != EACCES) return OkStatus();
  return MakeStatus(StatusCode::kPermissionDenied,
                    "folder '" + data_folder + "' belongs to " + OwnerOf(data_folder) +
                        " and cannot be written to; choose another one with --data");
}

bool WasTakenDown(const std::string& data_folder) {
  const auto text = runtime::ReadFile(SupervisorPath(data_folder), 64u << 20);
  const auto json = text.ok() ? Json::parse(*text, nullptr, false) : Json();
  if (!json.is_object() || !json.contains("state")) return false;
  return json["state"] == "stopping" || json["state"] == "stopped";
}

StatusOr<std::string> OrchestratorAddressOf(const std::string& data_folder) {
  TITAN_RETURN_IF_ERROR(CheckAccess(data_folder));
  const auto text = runtime::ReadFile(EndpointsPath(data_folder), 16u << 20);
  if (!text.ok() || !runtime::FileLock::IsHeld(LockPath(data_folder))) {
    return NotFound("no cluster runs in '" + data_folder +
                    "'; start one with: " + UpCommand(data_folder));
  }
  const auto json = Json::parse(*text, nullptr, false);
  if (json.is_object() && json.contains("endpoints") && json["endpoints"].is_array()) {
    for (const auto& item : json["endpoints"]) {
      const auto endpoint = runtime::EndpointFromJsonText(item.dump());
      if (endpoint.ok() && endpoint->role == "orchestrator") return endpoint->address;
    }
  }
  return NotFound("'" + EndpointsPath(data_folder) +
                  "' names no orchestrator; the cluster is starting");
}

struct Cluster::Impl {
  explicit Impl(ClusterOptions o) : options(std::move(o)), folder(options.config.data_folder()) {}

  ClusterOptions options;
  const std::string folder;
  SystemClock clock;
  std::optional<runtime::FileLock> lock;
  std::function<bool()> cancelled;

  // The supervisor's thread only.
  std::unique_ptr<ProcessGroup> group;
  int64_t started_unix_ms = 0;
  std::string programs;  // stamp of the programs as they were at the start
  std::string state = "starting";
  std::string reason;
  std::vector<runtime::Endpoint> endpoints;

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool start_done = false;
  Status start_status;
  bool stop_wanted = false;
  std::vector<ProcessState> published;  // copy of the group's
  std::string degraded;
  std::string orchestrator_address;
  std::jthread thread;

  void Say(const std::string& text) {
    if (options.say) options.say(text);
  }

  bool StopWanted() const {
    std::lock_guard hold(mutex);
    return stop_wanted;
  }

  // Sleeps one poll interval, or less when Stop is called.
  void Pause() {
    std::unique_lock hold(mutex);
    changed.wait_for(hold, kPoll, [&] { return stop_wanted; });
  }

  // ---- files ----

  void WriteSupervisorFile() {
    Json json;
    json["pid"] = getpid();
    json["state"] = state;
    json["reason"] = reason;
    json["started_unix_ms"] = started_unix_ms;
    json["up_options"] = options.up_options;
    json["bin_folder"] = options.bin_folder;
    json["programs"] = programs;
    json["processes"] = Json::array();
    for (const ProcessState& process : group->processes()) {
      Json row;
      row["name"] = process.spec.name;
      row["role"] = process.spec.role;
      row["pid"] = process.pid;
      row["exe"] = process.spec.exe;
      row["state"] = process.running ? "running" : process.given_up ? "given up" : "ended";
      row["restarts"] = process.restarts;
      row["exits"] = Json::array();
      for (const PastExit& past : process.exits) {
        Json exit;
        exit["pid"] = past.pid;
        exit["exit"] = past.exit.code;
        exit["how"] = Describe(past.exit);
        exit["unix_ms"] = past.unix_ms;
        row["exits"].push_back(std::move(exit));
      }
      json["processes"].push_back(std::move(row));
    }
    // A path need not be UTF-8, which would be no reason to end.
    WriteOrLog(SupervisorPath(folder),
               json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  void WriteEndpointsFile() {
    Json json;
    json["data_folder"] = folder;
    json["weightstore_socket"] = SocketPath(options.config);
    json["endpoints"] = Json::array();
    for (const runtime::Endpoint& endpoint : endpoints) {
      json["endpoints"].push_back(Json::parse(runtime::ToJsonText(endpoint), nullptr, false));
    }
    WriteOrLog(EndpointsPath(folder), json.dump(2) + "\n");
  }

  void WriteOrLog(const std::string& path, const std::string& text) {
    const Status written = runtime::WriteFileAtomically(path, text);
    if (!written.ok()) TITAN_LOG(kError, "file_not_written", {"path", path}, {"status", written});
  }

  void Publish() {
    WriteSupervisorFile();
    std::lock_guard hold(mutex);
    published = group->processes();
    degraded = group->degraded();
  }

  // Takes over endpoint files that changed (a restarted process has another one). True when any
  // did.
  bool RefreshEndpoints() {
    bool any = false;
    for (const ProcessState& process : group->processes()) {
      const auto read = runtime::ReadEndpoint(folder + "/" + process.spec.name, process.spec.name);
      if (!read.ok() || read->pid != process.pid) continue;
      bool known = false;
      for (runtime::Endpoint& endpoint : endpoints) {
        if (endpoint.worker_id != read->worker_id) continue;
        known = true;
        any = any || !(endpoint == *read);
        endpoint = *read;
      }
      if (!known) endpoints.push_back(*read);
      any = any || !known;
    }
    return any;
  }

  // ---- start ----

  Status Launch(const DaemonPlan& plan) {
    const std::string config = folder + "/config/" + plan.name + ".json";
    TITAN_RETURN_IF_ERROR(runtime::WriteFileAtomically(config, plan.config_json));
    std::error_code ignored;  // a file of an earlier run names another pid anyway
    std::filesystem::remove(runtime::EndpointPath(folder + "/" + plan.name, plan.name), ignored);
    ProcessSpec spec;
    spec.name = plan.name;
    spec.role = plan.role;
    spec.exe = options.bin_folder + "/titan-" + plan.role;
    spec.arguments = {"--config", config};
    spec.log_path = folder + "/logs/" + plan.name + ".log";
    spec.restart = plan.restart;
    std::filesystem::remove(spec.log_path, ignored);
    const Status started = group->Start(std::move(spec));
    if (!started.ok()) return Annotate(started, plan.name);
    Publish();
    return OkStatus();
  }

  // The reason when some process has ended during the start.
  Status CheckAlive() {
    group->Poll();
    for (const ProcessState& process : group->processes()) {
      if (process.exits.empty()) continue;
      std::string text = process.spec.name + " ended during the start with " +
                         Describe(process.exits.back().exit) + "; its last log lines (" +
                         process.spec.log_path + "):\n" +
                         LastLines(process.spec.log_path, kLogLinesInErrors);
      // A daemon ends so when it refuses its configuration, which is what the cluster was given.
      if (process.exits.back().exit.code == kExitUsage) {
        return InvalidArgument(text + "\n(the part '" + process.spec.role +
                               "' of the cluster configuration)");
      }
      if (process.exits.back().exit.code == kExitDamaged) return DataLoss(text);
      return Unavailable(text);
    }
    if (StopWanted() || (cancelled && cancelled())) return Cancelled("the start was interrupted");
    return OkStatus();
  }

  // Waits for `name` to listen; with `ready` until it is ready as well.
  StatusOr<runtime::Endpoint> WaitFor(const std::string& name, bool ready) {
    const Instant deadline = clock.Now() + kStartDeadline;
    std::string last = "it does not listen";
    while (clock.Now() < deadline) {
      TITAN_RETURN_IF_ERROR(CheckAlive());
      const ProcessState* process = group->Find(name);
      TITAN_CHECK(process != nullptr);
      const auto endpoint = runtime::ReadEndpoint(folder + "/" + name, name);
      if (endpoint.ok() && endpoint->pid == process->pid) {
        if (!ready) return endpoint;
        const auto answer =
            runtime::GetHealth(endpoint->health_address, "/readyz", milliseconds(500));
        if (answer.ok() && answer->http_status == 200) return endpoint;
        last = answer.ok() ? answer->body : MessageOf(answer.status());
      }
      Pause();
    }
    const ProcessState* process = group->Find(name);
    return DeadlineExceeded(name + " was not ready within " +
                            std::to_string(kStartDeadline.count()) + " s: " + last +
                            "; its last log lines (" + process->spec.log_path + "):\n" +
                            LastLines(process->spec.log_path, kLogLinesInErrors));
  }

  Status StartAll() {
    TITAN_RETURN_IF_ERROR(runtime::MakeWritableFolder(folder + "/config"));
    TITAN_RETURN_IF_ERROR(runtime::MakeWritableFolder(folder + "/logs"));
    Addresses addresses;
    Say("starting the weight store");
    TITAN_RETURN_IF_ERROR(Launch(PlanWeightStore(options.config)));
    TITAN_ASSIGN_OR_RETURN(const runtime::Endpoint store, WaitFor("weightstore", false));
    addresses.weightstore = store.address;
    Say("starting the orchestrator");
    TITAN_RETURN_IF_ERROR(Launch(PlanOrchestrator(options.config, addresses)));
    TITAN_ASSIGN_OR_RETURN(const runtime::Endpoint orchestrator, WaitFor("orchestrator", false));
    addresses.orchestrator = orchestrator.address;
    Say("starting trainer, reward service and " + std::to_string(options.config.num_generators()) +
        " generators");
    for (const DaemonPlan& plan : PlanWorkers(options.config, addresses)) {
      TITAN_RETURN_IF_ERROR(Launch(plan));
    }
    std::vector<std::string> names;
    for (const ProcessState& process : group->processes()) names.push_back(process.spec.name);
    for (const std::string& name : names) TITAN_RETURN_IF_ERROR(WaitFor(name, true).status());
    RefreshEndpoints();
    WriteEndpointsFile();
    std::lock_guard hold(mutex);
    orchestrator_address = addresses.orchestrator;
    return OkStatus();
  }

  // ---- stop ----

  void StopProcesses(const std::vector<std::string>& names, milliseconds patience) {
    for (const std::string& name : names) group->Signal(name, SIGTERM);
    const Instant deadline = clock.Now() + patience;
    const auto any_runs = [&] {
      for (const std::string& name : names) {
        if (group->Find(name)->running) return true;
      }
      return false;
    };
    while (any_runs() && clock.Now() < deadline) {
      if (group->Poll()) Publish();  // `down` reads who is still there
      std::this_thread::sleep_for(milliseconds(10));
    }
    for (const std::string& name : names) {
      if (group->Find(name)->running) {
        TITAN_LOG(kError, "process_killed", {"name", name});
        group->Signal(name, SIGKILL);
      }
    }
    while (any_runs()) {
      group->Poll();
      std::this_thread::sleep_for(milliseconds(10));
    }
  }

  void StopAll() {
    group->BeginStop();
    group->Poll();
    const auto& config = options.config;
    std::vector<std::string> orchestrator, workers, store;
    for (const ProcessState& process : group->processes()) {
      auto& stage = process.spec.role == "orchestrator"  ? orchestrator
                    : process.spec.role == "weightstore" ? store
                                                         : workers;
      stage.push_back(process.spec.name);
    }
    StopProcesses(orchestrator, ShutdownDeadline(config.orchestrator().daemon()) + kKillMargin);
    StopProcesses(workers, std::max(ShutdownDeadline(config.generator().daemon()),
                                    ShutdownDeadline(config.trainer().daemon())) +
                               kKillMargin);
    StopProcesses(store, ShutdownDeadline(config.weightstore().daemon()) + kKillMargin);
  }

  // ---- the supervisor's thread ----

  void Run() {
    group = std::make_unique<ProcessGroup>(clock);
    started_unix_ms = clock.UnixMs();
    programs = ProgramStamp(options.bin_folder);
    const Status started = StartAll();
    state = started.ok() ? "running" : "failed";
    reason = started.ok() ? "" : MessageOf(started);
    Publish();
    {
      std::lock_guard hold(mutex);
      start_status = started;
      start_done = started.ok();
    }
    if (started.ok()) {
      changed.notify_all();
      Watch();
      state = "stopping";
      Publish();
    }
    StopAll();
    state = started.ok() ? "stopped" : "failed";
    Publish();
    std::error_code ignored;  // readers check the lock as well
    std::filesystem::remove(EndpointsPath(folder), ignored);
    {
      std::lock_guard hold(mutex);
      start_done = true;
    }
    changed.notify_all();
  }

  void Watch() {
    while (!StopWanted()) {
      const bool processes_changed = group->Poll();
      if (RefreshEndpoints()) WriteEndpointsFile();
      if (processes_changed) {
        if (!group->degraded().empty() && state != "degraded") {
          state = "degraded";
          reason = group->degraded();
          Say("cluster degraded: " + reason);
        }
        Publish();
      }
      Pause();
    }
  }
};

StatusOr<std::unique_ptr<Cluster>> Cluster::Start(ClusterOptions options,
                                                  std::function<bool()> cancelled) {
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->cancelled = std::move(cancelled);
  TITAN_RETURN_IF_ERROR(runtime::MakeWritableFolder(impl->folder));
  auto lock = runtime::FileLock::Acquire(LockPath(impl->folder));
  if (!lock.ok()) {
    if (lock.status().code() != StatusCode::kFailedPrecondition) return lock.status();
    return FailedPrecondition(
        "folder '" + impl->folder +
        "' is in use by a running cluster; end it with: titanctl down --data " +
        ShellWord(impl->folder) + ", or choose another folder");
  }
  impl->lock = *std::move(lock);
  TITAN_RETURN_IF_ERROR(Preflight(impl->options.config, impl->options.origins));
  Impl* raw = impl.get();
  impl->thread = std::jthread([raw] { raw->Run(); });
  std::unique_ptr<Cluster> cluster(new Cluster(std::move(impl)));
  std::unique_lock hold(raw->mutex);
  raw->changed.wait(hold, [&] { return raw->start_done; });
  const Status started = raw->start_status;
  hold.unlock();
  if (!started.ok()) return started;
  return cluster;
}

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Cluster::~Cluster() { Stop(); }

void Cluster::Stop() {
  {
    std::lock_guard hold(impl_->mutex);
    impl_->stop_wanted = true;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::string Cluster::orchestrator_address() const {
  std::lock_guard hold(impl_->mutex);
  return impl_->orchestrator_address;
}

std::string Cluster::degraded() const {
  std::lock_guard hold(impl_->mutex);
  return impl_->degraded;
}

std::vector<ProcessState> Cluster::processes() const {
  std::lock_guard hold(impl_->mutex);
  return impl_->published;
}

}  // namespace titan::cluster
