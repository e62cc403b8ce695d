// SPDX-License-Identifier: Apache-2.0
//
// EngineThread: the one thread that runs an Engine. Others hand it work and get replies through
// listeners.
//
//   any thread: Submit / Cancel / Do  ->  [commands]  ->  engine thread: Step, listeners
//
// The list of commands has no bound of its own: every pass of the thread empties it, before each
// step, and a Submit that the engine's queue has no room for ends at once with its refusal. What
// can wait is what callers hand over during one step, so a server bounds it by its open calls.
//
// Thread-safe. Listeners and functions given to Do run on the engine thread, or on the thread that
// destroys this object for what was open or queued then; they must not block or destroy this
// object.
#ifndef TITAN_GENERATOR_ENGINE_THREAD_H_
#define TITAN_GENERATOR_ENGINE_THREAD_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "generator/engine.h"

namespace titan::generator {

class EngineThread {
 public:
  struct Listener {
    std::function<void(SampleResult)> on_sample;
    // Exactly once, last: ok after the last sample, else why the rest will not come.
    std::function<void(Status)> on_end;
  };
  using Ticket = uint64_t;

  explicit EngineThread(std::unique_ptr<Engine> engine);
  // Joins, runs what is still queued, and ends every open request with Cancelled. What listeners
  // submit meanwhile is refused with Cancelled.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // on_end gets Engine::Submit's refusal if there is one; Cancelled on the calling thread, before
  // this returns, while this object is being destroyed.
  Ticket Submit(GroupRequest request, Listener listener);
  // The listener's on_end gets Cancelled, unless the request ended before.
  void Cancel(Ticket ticket);
  // Runs f between two steps, once.
  void Do(std::function<void(Engine&)> f);

  struct Stats {
    int running = 0;
    int queued = 0;
    int running_max = 0;
    uint64_t tokens_generated = 0;
  };
  Stats stats() const;

 private:
  struct Open {
    Ticket ticket;
    size_t samples_left;
    Listener listener;
  };

  void Loop();
  void RunCommands();
  void Deliver(Engine::StepOutput output);
  void End(uint64_t request, const Status& status);

  std::unique_ptr<Engine> engine_;
  std::map<uint64_t, Open> open_;          // by request id; engine thread
  std::map<Ticket, uint64_t> request_of_;  // engine thread

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stop_ = false;                            // guarded by mutex_
  Ticket next_ticket_ = 1;                       // guarded by mutex_
  Stats stats_;                                  // guarded by mutex_
  std::thread thread_;
};

}  // namespace titan::generator

#endif  // TITAN_GENERATOR_ENGINE_THREAD_H_
