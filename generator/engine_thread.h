// SPDX-License-Identifier: Apache-2.0
//
// EngineThread: the one thread that runs an Engine. Others hand it work and get replies through
// listeners.
//
//   any thread: Submit / Cancel / Do  ->  [bounded by the engine's own queue]  ->  engine thread:
//   Step, listeners
//
// Thread-safe. Listeners and functions given to Do run on the engine thread and must not block or
// call back into this object's destructor.
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
  // Ends every open request with Cancelled and joins.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // on_end gets Engine::Submit's refusal if there is one.
  Ticket Submit(GroupRequest request, Listener listener);
  // The listener's on_end gets Cancelled, unless the request ended before.
  void Cancel(Ticket ticket);
  // Runs f between two steps.
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
