// SPDX-License-Identifier: Apache-2.0
#include "generator/engine_thread.h"

#include <utility>

#include "core/base/check.h"
#include "core/kernels/isa.h"

namespace titan::generator {
namespace {

constexpr char kShuttingDown[] = "the generator is shutting down";

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Engine> engine)
    : engine_(std::move(engine)), thread_([this] { Loop(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  const kernels::NumericThread numeric;
  RunCommands();
  while (!open_.empty()) End(open_.begin()->first, Cancelled(kShuttingDown));
  RunCommands();  // Cancel and Do of the listeners that were told
}

void EngineThread::RunCommands() {
  while (true) {
    std::vector<std::function<void()>> commands;
    {
      const std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    if (commands.empty()) return;
    for (const auto& command : commands) command();
  }
}

EngineThread::Ticket EngineThread::Submit(GroupRequest request, Listener listener) {
  Ticket ticket;
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    ticket = next_ticket_++;
    refused = stop_;
  }
  if (refused) {
    listener.on_end(Cancelled(kShuttingDown));
    return ticket;
  }
  Do([this, ticket, request = std::move(request),
      listener = std::move(listener)](Engine& engine) mutable {
    const size_t samples = request.samples.size();
    const auto id = engine.Submit(std::move(request));
    if (!id.ok()) {
      listener.on_end(id.status());
      return;
    }
    request_of_[ticket] = *id;
    open_.emplace(*id, Open{ticket, samples, std::move(listener)});
  });
  return ticket;
}

void EngineThread::Cancel(Ticket ticket) {
  Do([this, ticket](Engine& engine) {
    const auto it = request_of_.find(ticket);
    if (it == request_of_.end()) return;
    const uint64_t request = it->second;
    engine.Cancel(request);
    End(request, Cancelled("the request was cancelled"));
  });
}

void EngineThread::Do(std::function<void(Engine&)> f) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back([this, f = std::move(f)] { f(*engine_); });
  }
  wake_.notify_one();
}

EngineThread::Stats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void EngineThread::Loop() {
  const kernels::NumericThread numeric;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !commands_.empty() || engine_->HasWork(); });
    if (stop_) return;
    std::vector<std::function<void()>> commands;
    commands.swap(commands_);
    lock.unlock();
    for (const auto& command : commands) command();
    TITAN_DCHECK(kernels::NumericEnvironmentIsSet());  // whatever the commands called
    if (engine_->HasWork()) Deliver(engine_->Step());
    lock.lock();
    stats_ = {engine_->num_running(), engine_->num_queued_groups(),
              engine_->sequences_running_max(), engine_->tokens_generated()};
  }
}

void EngineThread::Deliver(Engine::StepOutput output) {
  for (SampleResult& result : output.finished) {
    const uint64_t request = result.request;
    Open& open = open_.at(request);
    open.listener.on_sample(std::move(result));
    if (--open.samples_left == 0) End(request, OkStatus());
  }
  for (const auto& [request, status] : output.failed) End(request, status);
}

void EngineThread::End(uint64_t request, const Status& status) {
  const auto it = open_.find(request);
  if (it == open_.end()) return;
  request_of_.erase(it->second.ticket);
  Listener listener = std::move(it->second.listener);
  open_.erase(it);
  listener.on_end(status);
}

}  // namespace titan::generator
