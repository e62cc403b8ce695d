// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/process_group.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "core/runtime/log.h"

namespace titan::cluster {

ProcessGroup::~ProcessGroup() {
  for (const ProcessState& state : states_) {
    if (!state.running) continue;
    kill(state.pid, SIGKILL);
    waitpid(state.pid, nullptr, 0);
  }
}

Status ProcessGroup::Start(ProcessSpec spec) {
  TITAN_ASSIGN_OR_RETURN(const pid_t pid, StartProcess(spec.exe, spec.arguments, spec.log_path));
  ProcessState state;
  state.spec = std::move(spec);
  state.pid = pid;
  state.running = true;
  TITAN_LOG(kInfo, "process_started", {"name", state.spec.name}, {"pid", pid});
  states_.push_back(std::move(state));
  pending_.emplace_back();
  return OkStatus();
}

void ProcessGroup::Ended(size_t i, const ProcessExit& exit) {
  ProcessState& state = states_[i];
  Pending& pending = pending_[i];
  state.running = false;
  state.exits.push_back({state.pid, exit, clock_.UnixMs()});
  TITAN_LOG(kInfo, "process_ended", {"name", state.spec.name}, {"pid", state.pid},
            {"how", Describe(exit)});
  if (stopping_) return;
  const std::string what =
      state.spec.name + " (pid " + std::to_string(state.pid) + ") ended with " + Describe(exit);
  if (!state.spec.restart) {
    if (degraded_.empty()) degraded_ = what;
    TITAN_LOG(kError, "cluster_degraded", {"reason", what});
    return;
  }
  const Instant now = clock_.Now();
  while (!pending.starts.empty() && now - pending.starts.front() > kRestartWindow) {
    pending.starts.pop_front();
  }
  if (pending.starts.size() >= static_cast<size_t>(kMaxRestarts)) {
    state.given_up = true;
    if (degraded_.empty()) {
      degraded_ = what + " after " + std::to_string(kMaxRestarts) + " restarts in a minute";
    }
    TITAN_LOG(kError, "restarts_exhausted", {"name", state.spec.name}, {"reason", degraded_});
    return;
  }
  const auto backoff =
      std::min<Duration>(kFirstBackoff * (1 << pending.starts.size()), kMaxBackoff);
  pending.due = now + backoff;
}

bool ProcessGroup::Poll() {
  bool changed = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    ProcessState& state = states_[i];
    Pending& pending = pending_[i];
    if (state.running) {
      if (const auto exit = PollProcess(state.pid); exit.has_value()) {
        Ended(i, *exit);
        changed = true;
      }
    }
    if (stopping_ || !pending.due.has_value() || clock_.Now() < *pending.due) continue;
    pending.due.reset();
    pending.starts.push_back(clock_.Now());
    changed = true;
    const auto pid = StartProcess(state.spec.exe, state.spec.arguments, state.spec.log_path);
    if (!pid.ok()) {
      state.given_up = true;
      if (degraded_.empty()) degraded_ = state.spec.name + ": " + MessageOf(pid.status());
      TITAN_LOG(kError, "restart_failed", {"name", state.spec.name}, {"status", pid.status()});
      continue;
    }
    state.pid = *pid;
    state.running = true;
    ++state.restarts;
    TITAN_LOG(kWarning, "process_restarted", {"name", state.spec.name}, {"pid", *pid},
              {"restarts", state.restarts});
  }
  return changed;
}

bool ProcessGroup::Signal(const std::string& name, int signal) {
  const ProcessState* state = Find(name);
  return state != nullptr && state->running && kill(state->pid, signal) == 0;
}

const ProcessState* ProcessGroup::Find(const std::string& name) const {
  for (const ProcessState& state : states_) {
    if (state.spec.name == name) return &state;
  }
  return nullptr;
}

}  // namespace titan::cluster
