// SPDX-License-Identifier: Apache-2.0
// up, supervise, down, status.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/down_view.h"
#include "clients/cli/job_view.h"
#include "clients/cluster/cluster.h"
#include "clients/cluster/cluster_config.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/preflight.h"
#include "clients/cluster/terminal.h"
#include "core/base/clock.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/files.h"
#include "core/runtime/log.h"
#include "core/runtime/shutdown.h"
#include "services/rpc/config.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kDownDeadline{90};  // of its daemons together, each of which has its own
constexpr seconds kDownWord{1};       // between two words about who still runs
constexpr char kReady[] = "ready";

StatusOr<config::v1::ClusterConfig> MakeClusterConfig(const Common& common,
                                                      const UpOptions& options,
                                                      rpc::ConfigOrigins* where) {
  config::v1::ClusterConfig cluster;
  cluster::FillClusterDefaults(&cluster);
  rpc::ConfigOrigins origins;
  rpc::ConfigProblems problems;
  if (!options.config.empty()) {
    TITAN_RETURN_IF_ERROR(rpc::ReadConfigFile(options.config, &cluster, &origins,
                                              cluster::ValidClusterValues(), &problems));
  }
  if (options.generators > 0) {
    cluster.set_num_generators(static_cast<uint32_t>(options.generators));
    origins.SetFromFlag("num_generators", "--generators");
  }
  if (!cluster.data_folder().empty()) {
    rpc::AddProblems({{"data_folder", "is filled in from the command line; leave it out"}},
                     &problems);
  }
  std::error_code error;
  cluster.set_data_folder(std::filesystem::weakly_canonical(common.data, error).string());
  if (error) return InvalidArgument("--data '" + common.data + "': " + error.message());
  if (problems.empty()) origins.SetFromFlag("data_folder", "--data");
  rpc::ConfigProblems of_values;
  cluster::ValidateCluster(cluster, origins, &of_values);
  rpc::AddProblems(std::move(of_values), &problems);
  TITAN_RETURN_IF_ERROR(rpc::ProblemsToStatus(problems, origins));
  *where = origins;
  return cluster;
}

// What another `up` in any folder has to be given for the same cluster, beside --data.
std::vector<std::string> OptionsOf(const UpOptions& options) {
  std::vector<std::string> words;
  if (!options.config.empty()) {
    std::error_code error;
    const std::string path = std::filesystem::absolute(options.config, error).string();
    words.insert(words.end(), {"--config", error ? options.config : path});
  }
  if (options.generators > 0) {
    words.insert(words.end(), {"--generators", std::to_string(options.generators)});
  }
  return words;
}

std::string BinFolder() {
  return std::filesystem::path(runtime::ExecutablePath()).parent_path().string();
}

// supervisor.json; NotFound when no cluster was ever started there.
StatusOr<Json> ReadSupervisor(const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::string text,
                         runtime::ReadFile(cluster::SupervisorPath(folder), 64u << 20));
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("pid") || !json["pid"].is_number_integer() ||
      !json.contains("state") || !json["state"].is_string() || !json.contains("processes") ||
      !json["processes"].is_array()) {
    return DataLoss("'" + cluster::SupervisorPath(folder) + "' is not a supervisor's file");
  }
  return json;
}

// Names of the processes that the supervisor has not seen end, a comma between.
std::string StillRunning(const std::string& folder) {
  const auto supervisor = ReadSupervisor(folder);
  std::string names;
  if (!supervisor.ok()) return names;
  for (const auto& process : (*supervisor)["processes"]) {
    if (!process.is_object() || process.value("state", "") != "running") continue;
    names += (names.empty() ? "" : ", ") + process.value("name", "");
  }
  return names;
}

// Names of the processes that have ended and are not started again.
std::vector<std::string> GoneForGood(const Json& supervisor) {
  std::vector<std::string> names;
  for (const auto& process : supervisor["processes"]) {
    if (!process.is_object() || process.value("state", "") == "running") continue;
    names.push_back(process.value("name", ""));
  }
  return names;
}

// What to do about a degraded cluster.
std::string FixOf(const Json& supervisor, const std::string& data) {
  std::string fix;
  for (const std::string& name : GoneForGood(supervisor)) {
    fix += "titanctl logs " + name + " --data " + cluster::ShellWord(data) +
           " shows the last words of " + name + "; ";
  }
  return fix + cluster::RestartCommand(data) + " starts everything anew, queued jobs stay";
}

// What the end of the cluster does to its jobs; Unavailable: nobody is there to say it.
StatusOr<JobsAtDown> AskForJobs(const Json& supervisor, const Common& common) {
  for (const std::string& name : GoneForGood(supervisor)) {
    if (name == "orchestrator") {
      return Unavailable("the orchestrator has ended before; queued jobs stay queued");
    }
  }
  TITAN_ASSIGN_OR_RETURN(const std::string address, cluster::OrchestratorAddressOf(common.data));
  TITAN_ASSIGN_OR_RETURN(const auto client, cluster::JobClient::Connect(address, common.data));
  TITAN_ASSIGN_OR_RETURN(const auto jobs, client->ListJobs());
  return SortForDown(jobs);
}

// Takes a folder away that `up` made and in which no daemon was started.
void RemoveUnused(const std::string& folder) {
  std::error_code ignored;
  const auto lock = runtime::FileLock::Acquire(cluster::LockPath(folder));
  if (!lock.ok()) return;  // another `up` was quicker, and the folder is its own
  if (std::filesystem::exists(cluster::SupervisorPath(folder), ignored)) return;
  for (const std::string& path : {folder + "/logs/supervisor.log", folder + "/logs",
                                  folder + "/format.json", cluster::LockPath(folder), folder}) {
    std::filesystem::remove(path, ignored);  // a folder only when nothing else is in it
  }
}

struct Outcome {
  std::string text;       // everything until the end of the pipe
  bool ended_it = false;  // `signal` was requested meanwhile, and the process got SIGTERM
};

Outcome ReadOutcome(int fd, const runtime::ShutdownSignal& signal, pid_t pid) {
  Outcome outcome;
  char buffer[4096];
  for (;;) {
    if (signal.requested() && !outcome.ended_it) {
      outcome.ended_it = true;
      kill(pid, SIGTERM);
    }
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, 50) == 0) continue;
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return outcome;
    outcome.text.append(buffer, static_cast<size_t>(n));
  }
}

// What to tell when the programs are not those that the cluster was started with; empty: they are.
std::string ProgramsChanged(const Json& supervisor, const std::string& data) {
  const std::string folder = supervisor.value("bin_folder", "");
  const std::string stamp = supervisor.value("programs", "");
  if (folder.empty() || stamp.empty() || cluster::ProgramStamp(folder) == stamp) return "";
  return "the programs in " + folder +
         " changed since this cluster was started; to use them: " + cluster::RestartCommand(data);
}

// Says that a cluster runs there already, and where.
int AlreadyRuns(const Common& common, const std::string& folder) {
  const auto supervisor = ReadSupervisor(folder);
  const auto address = cluster::OrchestratorAddressOf(folder);
  const std::string pid =
      supervisor.ok() ? ", pid " + std::to_string((*supervisor)["pid"].get<int64_t>()) : "";
  const std::string word = cluster::ShellWord(common.data);
  std::cerr << "titanctl: a cluster runs in " << folder << " already (orchestrator "
            << (address.ok() ? *address : "starting") << pid
            << ")\nfix: look at it with: titanctl status --data " << word
            << "; end it with: titanctl down --data " << word
            << "; or choose another folder with --data" << std::endl;
  if (supervisor.ok()) {
    if (const std::string note = ProgramsChanged(*supervisor, common.data); !note.empty()) {
      std::cerr << "note: " << note << std::endl;
    }
  }
  return kExitInUse;
}

}  // namespace

int Up(const Common& common, const UpOptions& options) {
  runtime::ShutdownSignal signal(kSecondSignal);  // before any thread
  rpc::ConfigOrigins origins;
  const auto config = MakeClusterConfig(common, options, &origins);
  if (!config.ok()) return Fail(config.status());
  for (const std::string& warning : cluster::ClusterWarnings(*config, origins)) {
    std::cerr << "warning: " << warning << std::endl;
  }
  if (options.print_config) {
    std::cout << cluster::PrintCluster(*config, origins) << std::flush;
    return kExitOk;
  }
  if (options.check_config) {
    std::cout << "config ok" << std::endl;
    return kExitOk;
  }
  const std::string& folder = config->data_folder();
  if (runtime::FileLock::IsHeld(cluster::LockPath(folder))) return AlreadyRuns(common, folder);
  if (const Status access = cluster::CheckOwner(folder); !access.ok()) return Fail(access);
  std::error_code unknown;
  const bool fresh = !std::filesystem::exists(folder, unknown);
  const Status made = runtime::MakeWritableFolder(folder + "/logs");
  if (!made.ok()) return Fail(made);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0)
    return Fail(runtime::SystemError(errno, "cannot make", "pipe"));
  const std::string exe = runtime::ExecutablePath();
  const std::string log = folder + "/logs/supervisor.log";
  const std::string fd_text = std::to_string(report[1]);
  const std::vector<std::string> passed_on = OptionsOf(options);
  std::vector<const char*> argv = {exe.c_str(),    "supervise",   "--data",
                                   folder.c_str(), "--report_fd", fd_text.c_str()};
  for (const std::string& word : passed_on) argv.push_back(word.c_str());
  argv.push_back(nullptr);
  const int log_fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (log_fd < 0 || null_fd < 0) return Fail(runtime::SystemError(errno, "cannot open", log));
  const pid_t pid = fork();
  if (pid < 0) return Fail(runtime::SystemError(errno, "cannot fork for", exe));
  if (pid == 0) {
    setsid();  // outlives this terminal
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(null_fd, STDIN_FILENO);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    fcntl(report[1], F_SETFD, 0);
    execv(argv[0], const_cast<char* const*>(argv.data()));
    _exit(127);
  }
  close(report[1]);
  close(log_fd);
  close(null_fd);
  std::cerr << "starting the cluster in " << folder << std::endl;
  const auto [outcome, ended_it] = ReadOutcome(report[0], signal, pid);
  close(report[0]);
  if (ended_it) {
    // It may have become ready just before: it ends all the same, and is waited for.
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    std::cerr << "interrupted; the cluster was not started" << std::endl;
    return kExitDetached;
  }
  if (outcome != kReady) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
    if (fresh && !outcome.empty()) RemoveUnused(folder);
    const std::string text =
        outcome.empty() ? "the supervisor ended without a word; see " + log : outcome;
    return Fail(code == kExitUsage     ? InvalidArgument(text)
                : code == kExitDamaged ? DataLoss(text)
                                       : FailedPrecondition(text));
  }
  return ShowStatus(common);
}

int Supervise(const Common& common, const UpOptions& options, int report_fd) {
  runtime::ShutdownSignal signal;
  runtime::InitLog({.level = runtime::LogLevel::kInfo, .worker = "supervisor"});
  const auto report = [report_fd](const std::string& text) {
    if (report_fd < 0) return;
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = write(report_fd, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;  // `up` has gone; the cluster stays
      done += static_cast<size_t>(n);
    }
    close(report_fd);
  };
  const auto fail = [&](const Status& status) {
    report(MessageOf(status));
    return Fail(status);
  };
  if (report_fd >= 0) fcntl(report_fd, F_SETFD, FD_CLOEXEC);  // the daemons must not hold it
  cluster::ClusterOptions cluster_options;
  auto config = MakeClusterConfig(common, options, &cluster_options.origins);
  if (!config.ok()) return fail(config.status());
  cluster_options.config = *std::move(config);
  cluster_options.bin_folder = BinFolder();
  cluster_options.up_options = OptionsOf(options);
  auto cluster =
      cluster::Cluster::Start(std::move(cluster_options), [&] { return signal.requested(); });
  if (!cluster.ok()) return fail(cluster.status());
  report(kReady);
  const Status reason = signal.Wait();
  (*cluster)->Stop();
  return reason.ok() ? kExitOk : kExitFailed;
}

int Down(const Common& common) {
  const std::string& folder = common.data;
  std::optional<JobsAtDown> jobs;
  const auto ended = [&](const std::string& text) {
    if (common.json) {
      Json out({{"data_folder", folder}, {"state", "stopped"}});
      if (jobs.has_value()) {
        out["ended_jobs"] = Json::array();
        out["queued_jobs"] = Json::array();
        for (const auto& job : jobs->ended) out["ended_jobs"].push_back(job.job_id());
        for (const auto& job : jobs->kept) out["queued_jobs"].push_back(job.job_id());
      }
      std::cout << out.dump(2) << std::endl;
    } else {
      std::cout << text << std::endl;
    }
    return kExitOk;
  };
  if (const Status access = cluster::CheckAccess(folder); !access.ok()) return Fail(access);
  if (!runtime::FileLock::IsHeld(cluster::LockPath(folder))) {
    return ended("no cluster runs in '" + folder + "'");
  }
  const auto supervisor = ReadSupervisor(folder);
  if (!supervisor.ok()) return Fail(supervisor.status());
  const pid_t pid = (*supervisor)["pid"].get<pid_t>();
  // One that ends already would take a second signal as: at once, whoever still runs.
  const std::string state = (*supervisor)["state"].get<std::string>();
  const bool ending = state == "stopping" || state == "failed";
  if (!ending) {
    auto asked = AskForJobs(*supervisor, common);
    if (asked.ok()) {
      jobs = *std::move(asked);
      std::cerr << FormatJobsAtDown(*jobs, cluster::UpCommand(folder)) << std::flush;
    } else {
      std::cerr << "the jobs are not known: " << cluster::Printable(MessageOf(asked.status()))
                << std::endl;
    }
  }
  if (!ending && (pid <= 1 || kill(pid, SIGTERM) != 0)) {
    return Fail(FailedPrecondition("cannot signal the supervisor, pid " + std::to_string(pid)));
  }
  std::cerr << "ending the cluster in " << folder << std::endl;
  const auto begin = steady_clock::now();
  auto next_word = begin + kDownWord;
  std::string last_word;
  while (runtime::FileLock::IsHeld(cluster::LockPath(folder))) {
    const auto now = steady_clock::now();
    if (now > begin + kDownDeadline) {
      return Fail(FailedPrecondition("the cluster in '" + folder + "' did not end within " +
                                     std::to_string(kDownDeadline.count()) + " s; see " + folder +
                                     "/logs"));
    }
    if (now >= next_word) {
      next_word = now + kDownWord;
      if (std::string word = StillRunning(folder); !word.empty() && word != last_word) {
        last_word = std::move(word);
        std::cerr << "still running after "
                  << std::chrono::duration_cast<seconds>(now - begin).count() << " s: " << last_word
                  << std::endl;
      }
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  return ended("the cluster in " + folder + " has ended");
}

int ShowStatus(const Common& common) {
  Json out;
  out["data_folder"] = common.data;
  const bool local = common.address.empty();
  std::string state = "unknown", reason, note, fix;
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "PID", "STATE", "RESTARTS", "ADDRESS", "DOING"}};
  if (local) {
    if (const Status access = cluster::CheckAccess(common.data); !access.ok()) return Fail(access);
    const bool running = runtime::FileLock::IsHeld(cluster::LockPath(common.data));
    const auto supervisor = ReadSupervisor(common.data);
    if (!running || !supervisor.ok()) {
      if (common.json) {
        out["state"] = "stopped";
        std::cout << out.dump(2) << std::endl;
      } else {
        Fail(Unavailable("no cluster runs in '" + common.data +
                         "'; start one with: " + cluster::UpCommand(common.data)));
      }
      return kExitUnreachable;
    }
    state = (*supervisor)["state"].get<std::string>();
    reason = supervisor->value("reason", "");
    out["supervisor"] = *supervisor;
    note = ProgramsChanged(*supervisor, common.data);
    if (!note.empty()) out["note"] = note;
    if (state == "degraded") out["fix"] = fix = FixOf(*supervisor, common.data);
  }
  out["state"] = state;
  const auto address = OrchestratorOf(common);
  StatusOr<orchestrator::v1::ListWorkersResponse> workers = Unavailable("not asked");
  StatusOr<orchestrator::v1::ListJobsResponse> jobs = Unavailable("not asked");
  if (address.ok()) {
    out["orchestrator"] = *address;
    auto client = cluster::JobClient::Connect(*address, local ? common.data : "");
    if (!client.ok()) return Fail(client.status());
    workers = (*client)->ListWorkers();
    jobs = (*client)->ListJobs();
  }
  out["workers"] = Json::array();
  out["jobs"] = Json::array();
  if (workers.ok()) {
    for (const auto& worker : workers->workers()) {
      out["workers"].push_back(Json::parse(rpc::ToJsonText(worker), nullptr, false));
    }
  }
  if (jobs.ok()) {
    for (const auto& job : jobs->jobs()) {
      out["jobs"].push_back(Json::parse(rpc::ToJsonText(job), nullptr, false));
    }
  }
  const bool reachable = workers.ok() && jobs.ok();
  out["reachable"] = reachable;
  if (common.json) {
    std::cout << out.dump(2) << std::endl;
    return reachable ? kExitOk : kExitUnreachable;
  }
  const auto find_worker = [&](const std::string& name) -> const orchestrator::v1::WorkerInfo* {
    if (!workers.ok()) return nullptr;
    for (const auto& worker : workers->workers()) {
      if (worker.worker().worker_id() == name) return &worker;
    }
    return nullptr;
  };
  if (local) {
    for (const auto& process : out["supervisor"]["processes"]) {
      const std::string name = process.value("name", "");
      const auto* worker = find_worker(name);
      rows.push_back(
          {name, std::to_string(process.value("pid", 0)), process.value("state", ""),
           std::to_string(process.value("restarts", 0)),
           worker != nullptr                        ? worker->worker().address()
           : name == "orchestrator" && address.ok() ? *address
                                                    : "-",
           worker != nullptr
               ? worker->state() + (worker->doing().empty() ? "" : ", " + worker->doing())
           : name == "orchestrator" && jobs.ok() ? DoingOf(*jobs)
                                                 : "-"});
    }
  } else if (workers.ok()) {
    for (const auto& worker : workers->workers()) {
      const int64_t pid = worker.worker().pid();  // 0: of a weight store it is not known
      rows.push_back({worker.worker().worker_id(), pid > 0 ? std::to_string(pid) : "-",
                      worker.state(), "-", worker.worker().address(),
                      worker.doing().empty() ? "-" : worker.doing()});
    }
  }
  const cluster::Terminal terminal = cluster::Terminal::Stdout();
  if (local) {
    const cluster::Color color = state == "running" ? cluster::Color::kGreen : cluster::Color::kRed;
    std::cout << "cluster in " << common.data << ": " << terminal.Paint(color, state)
              << (reason.empty() ? "" : " (" + reason + ")") << "\n"
              << (fix.empty() ? "" : "fix: " + fix + "\n")
              << (note.empty() ? "" : "note: " + note + "\n");
  }
  std::cout << cluster::FormatTable(rows);
  if (jobs.ok() && jobs->jobs_size() > 0) {
    std::cout << "\n" << FormatJobs(*jobs, SystemClock().UnixMs(), terminal);
  }
  if (!reachable) {
    const Status& why = workers.ok() ? jobs.status() : workers.status();
    return Fail(Annotate(address.ok() ? why : address.status(), "orchestrator"));
  }
  return kExitOk;
}

}  // namespace titan::cli
