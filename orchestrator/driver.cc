// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/driver.h"

#include <chrono>
#include <type_traits>
#include <utility>

#include "core/base/check.h"

namespace titan::orchestrator {
namespace {

int64_t Microseconds(titan::Instant monotonic) {
  return std::chrono::duration_cast<std::chrono::microseconds>(monotonic).count();
}

}  // namespace

Driver::Driver(Ports ports, const Clock& clock)
    : ports_(ports), clock_(clock), origin_us_(clock.UnixMs() * 1000 - Microseconds(clock.Now())) {}

Instant Driver::Now() const { return Instant(Duration(origin_us_ + Microseconds(clock_.Now()))); }

void Driver::Restore(std::vector<RestoredJob> jobs) {
  engine_.Restore(std::move(jobs), Now());
  Pump();
}

void Driver::Deliver(const Event& event) {
  if (failed_) return;
  engine_.Handle(event, Now());
  Pump();
}

void Driver::Tick() {
  if (failed_) return;
  engine_.Tick(Now());
  Pump();
}

void Driver::WhenDurable(std::function<void()> then) {
  held_.push_back({num_appended_, {}, std::move(then)});
  ReleaseHeld();
}

void Driver::Pump() {
  Actions actions = engine_.TakeActions();
  num_appended_ += actions.facts.size();
  for (Fact& fact : actions.facts) pending_facts_.push_back(std::move(fact));
  for (Action& action : actions.actions) {
    // Reports and durable actions keep their order among themselves; the others pass them.
    if (action.after_facts == 0) {
      Do(action);
    } else {
      TITAN_CHECK(action.after_facts <= num_appended_);
      held_.push_back({action.after_facts, std::move(action), nullptr});
    }
  }
  CommitNext();
  ReleaseHeld();
}

void Driver::CommitNext() {
  if (committing_ || failed_ || pending_facts_.empty()) return;
  committing_ = true;
  std::vector<Fact> facts = std::exchange(pending_facts_, {});
  const size_t num = facts.size();
  ports_.journal.Commit(std::move(facts), [this, num](Status status) {
    committing_ = false;
    if (!status.ok()) {
      failed_ = true;
      held_.clear();
      ports_.observer.OnJournalFailure(status);
      return;
    }
    num_durable_ += num;
    ReleaseHeld();
    CommitNext();
  });
}

void Driver::ReleaseHeld() {
  while (!held_.empty() && held_.front().after_facts <= num_durable_) {
    const Held held = std::move(held_.front());
    held_.pop_front();
    if (held.then) {
      held.then();
    } else {
      Do(held.action);
    }
  }
}

template <typename Body>
void Driver::Perform(const Body& body) {
  if constexpr (std::is_same_v<Body, StartRun>) {
    ports_.trainer.Start(body);
  } else if constexpr (std::is_same_v<Body, TrainStep>) {
    ports_.trainer.Train(body);
  } else if constexpr (std::is_same_v<Body, LoadVersion>) {
    ports_.generators.Load(body);
  } else if constexpr (std::is_same_v<Body, ReleaseVersion>) {
    ports_.generators.Release(body);
  } else if constexpr (std::is_same_v<Body, StartRollout>) {
    ports_.generators.Start(body);
  } else if constexpr (std::is_same_v<Body, CancelRollouts>) {
    ports_.generators.Cancel(body);
  } else if constexpr (std::is_same_v<Body, ResetGenerator>) {
    ports_.generators.Reset(body);
  } else if constexpr (std::is_same_v<Body, Score>) {
    ports_.rewards.Send(body);
  } else if constexpr (std::is_same_v<Body, PinEvaluation>) {
    ports_.weight_store.Pin(body);
  } else if constexpr (std::is_same_v<Body, UnpinEvaluation>) {
    ports_.weight_store.Unpin(body);
  } else if constexpr (std::is_same_v<Body, EndRun>) {
    const std::string run_id = body.run_id;
    const auto end_at_store = [this, run_id] {
      ports_.weight_store.End(run_id, [this, run_id] { Deliver(RunEnded{run_id}); });
    };
    if (body.trainer.worker_id.empty()) {
      end_at_store();
    } else {
      ports_.trainer.End(body, end_at_store);
    }
  } else if constexpr (std::is_same_v<Body, ReportJob>) {
    ports_.observer.OnJob(body.job);
  } else if constexpr (std::is_same_v<Body, ReportStep>) {
    ports_.observer.OnStep(body.job_id, body.report);
  } else if constexpr (std::is_same_v<Body, ReportEvaluation>) {
    ports_.observer.OnEvaluation(body.job_id, body.report);
  } else {
    static_assert(std::is_same_v<Body, ReportMessage>);
    ports_.observer.OnMessage(body.job_id, body.text);
  }
}

void Driver::Do(const Action& action) {
  std::visit([this](const auto& body) { Perform(body); }, action.body);
}

}  // namespace titan::orchestrator
