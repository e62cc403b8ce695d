// SPDX-License-Identifier: Apache-2.0
//
// The thin layer around the engine: hands events to it, appends its facts to the journal (group
// commit: one commit in flight, all facts that come up meanwhile in the next), and lets each action
// go once the facts that it depends on are durable.
//
//   Deliver(event) -> engine -> facts ----> journal ---durable---> held actions -> ports, observer
//                            -> actions that need no fact ------------------------> ports
//
// One strand owns it: every call, and every answer of the ports, on that strand.
#ifndef TITAN_ORCHESTRATOR_DRIVER_H_
#define TITAN_ORCHESTRATOR_DRIVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "orchestrator/ports.h"
#include "orchestrator/run_engine.h"

namespace titan::orchestrator {

class Driver {
 public:
  // `clock` must outlive the driver.
  Driver(Ports ports, const Clock& clock);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Jobs of an earlier life; call it first.
  void Restore(std::vector<RestoredJob> jobs);
  void Deliver(const Event& event);
  // Deadlines and retries; call it every 100 ms or so.
  void Tick();

  // Runs `then` once everything that the engine has said so far is durable: acknowledgements wait
  // here.
  void WhenDurable(std::function<void()> then);

  const RunEngine& engine() const { return engine_; }
  // Unix time of the clock that never goes back.
  Instant Now() const;
  // For metrics: actions that wait for the journal.
  size_t num_held() const { return held_.size(); }

 private:
  void Pump();
  void CommitNext();
  void ReleaseHeld();
  void Do(const Action& action);
  template <typename Body>
  void Perform(const Body& body);

  const Ports ports_;
  const Clock& clock_;
  const int64_t origin_us_;  // Unix time of the monotonic clock's zero
  RunEngine engine_;
  std::vector<Fact> pending_facts_;
  uint64_t num_appended_ = 0;  // facts handed over by the engine
  uint64_t num_durable_ = 0;
  bool committing_ = false;
  bool failed_ = false;
  struct Held {
    uint64_t after_facts = 0;
    Action action;
    std::function<void()> then;  // instead of an action
  };
  std::deque<Held> held_;  // ascending in after_facts
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_DRIVER_H_
