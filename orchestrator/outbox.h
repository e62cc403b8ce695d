// SPDX-License-Identifier: Apache-2.0
//
// Collects what the engine decides, in order, and numbers the facts, so that an action can name the
// facts that must be durable before it. Not thread-safe; owned by the engine.
#ifndef TITAN_ORCHESTRATOR_OUTBOX_H_
#define TITAN_ORCHESTRATOR_OUTBOX_H_

#include <string>
#include <utility>

#include "orchestrator/actions.h"

namespace titan::orchestrator {

class Outbox {
 public:
  template <typename Body>
  void Append(const std::string& job_id, Instant at, Body body) {
    pending_.facts.push_back({job_id, at, std::move(body)});
    ++num_facts_;
  }
  // At once: losing the facts before it in a crash harms nothing.
  template <typename Body>
  void Do(Body body) {
    pending_.actions.push_back({0, std::move(body)});
  }
  // Once all facts appended so far are durable.
  template <typename Body>
  void DoDurably(Body body) {
    pending_.actions.push_back({num_facts_, std::move(body)});
  }
  Actions Take() { return std::exchange(pending_, {}); }

 private:
  Actions pending_;
  uint64_t num_facts_ = 0;
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_OUTBOX_H_
