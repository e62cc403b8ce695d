// SPDX-License-Identifier: Apache-2.0
//
// The generators of the run: which versions each holds, which samples each works on, and who gets
// what next. Oldest step first, evaluations last; the least loaded generator that has verified the
// version; a bound on what one generator may hold back, so that all of them get work. Placement
// never shows in a result: a sample's bits do not depend on where it is made. Not thread-safe; no
// I/O.
#ifndef TITAN_ORCHESTRATOR_FLEET_H_
#define TITAN_ORCHESTRATOR_FLEET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/actions.h"
#include "orchestrator/events.h"
#include "orchestrator/outbox.h"

namespace titan::orchestrator {

// Evaluation groups share the id space: the top bit, then version and question. REQUIRES: question
// < 2^24.
inline GroupId MakeEvaluationGroupId(PolicyVersion version, uint32_t question) {
  return {uint64_t{1} << 63 | version << 24 | question};
}
inline bool IsEvaluation(GroupId id) { return id.value >> 63 != 0; }

// Waits between attempts: 100 ms, doubling to 5 s.
class Backoff {
 public:
  Instant Next(Instant now) {
    const Instant at = now + wait_;
    wait_ = std::min(wait_ * 2, Duration(Millis(5000)));
    return at;
  }
  void Reset() { wait_ = Millis(100); }

 private:
  Duration wait_ = Millis(100);
};

class Fleet {
 public:
  // What one run's requests have in common.
  struct Run {
    std::string job_id;
    std::string run_id;
    uint64_t seed = 0;
    std::shared_ptr<const Dataset> dataset;
    std::vector<TokenId> stop_token_ids;
    uint32_t first_deadline_ms = 0;  // of one request of step 0 or of the evaluation of version 0
    uint32_t deadline_ms = 0;        // of any other request
  };
  struct Work {
    GroupId group;
    PolicyVersion version = 0;
    uint32_t data_row = 0;
    float temperature = 1;
    uint32_t max_new_tokens = 0;
    std::vector<SampleId> sample_ids;
  };

  // A generator that holds nothing. False: this life is known already. Another life of the same
  // worker is taken as lost.
  bool Join(const WorkerReady& ready);
  // False: not one of ours. Its unfinished samples wait for another generator; their number is
  // added.
  bool Leave(const WorkerName& name, size_t* samples_reissued);
  size_t num_generators() const { return generators_.size(); }
  // Of them, those that refused their latest version of this run.
  size_t num_refusing() const;

  void Begin(Run run);
  // Forgets all work and wants no version; what is held is released as its streams end.
  void Stop();
  // Drops what is left of a run that did not stop in time. Generators that may still hold a version
  // of it are reset before they get another one.
  void Abandon(Instant now);

  void AddWork(Work work);
  // Versions that training may still need, ascending.
  void WantVersions(std::vector<PolicyVersion> versions) { wanted_ = std::move(versions); }
  void WantEvaluation(std::optional<PolicyVersion> version) { evaluation_ = version; }

  // What people should hear of a version that is not there.
  struct LoadProblem {
    std::string text;
    bool hopeless = false;  // every generator of now refuses it, and none ever served the run
  };
  // Once for each version and kind of failure, however many generators fail and however often they
  // come back. What a generator refuses for what it is, or for the generator's configuration, is
  // not asked for again, and told of once for all versions of the run.
  std::optional<LoadProblem> OnLoaded(const VersionLoaded& event, Instant now);
  void OnReleased(const VersionReleased& event, Instant now);
  void OnReset(const GeneratorReset& event, Instant now);
  // A sample came: true if it is the first of its kind and wanted.
  bool OnSample(const SampleArrived& event);
  // A stream ended. Returns why no attempt can ever succeed, if so.
  std::optional<std::string> OnEnded(const RolloutEnded& event, Instant now);

  // Asks for the resets that are due; call it with and without a run.
  void PumpResets(Instant now, Outbox& out);
  // Releases, loads and dispatches. Returns the groups of training whose rollout started.
  std::vector<GroupId> Pump(Instant now, Outbox& out);

  // Nothing held, nothing running.
  bool Idle() const;
  bool HoldsEvaluation() const;
  // The latest trouble, for reasons of deadlines; empty: none.
  const std::string& last_problem() const { return last_problem_; }
  // For people: outstanding samples and versions per generator.
  std::string Describe(const std::string& worker_id) const;

 private:
  enum class HoldState { kLoading, kHeld, kReleasing, kFailed, kRefused, kReleaseFailed };
  enum class ResetState { kNone, kDue, kAsked };
  struct Hold {
    HoldState state = HoldState::kLoading;
    uint32_t outstanding = 0;  // samples
    Instant retry_at;
  };
  using HoldKey = std::pair<bool, PolicyVersion>;  // (evaluation, version)
  struct Generator {
    WorkerName name;
    uint32_t max_versions = 1;
    uint32_t max_running = 1;
    std::map<HoldKey, Hold> holds;
    uint32_t outstanding_training = 0;
    uint32_t outstanding_evaluation = 0;
    uint64_t samples_given = 0;
    bool refuses = false;  // the latest version of this run that it was asked for
    Instant not_before;
    Backoff backoff;
    Backoff release_backoff;  // of releases and resets
    ResetState reset = ResetState::kNone;
    Instant reset_at;
    uint32_t outstanding() const { return outstanding_training + outstanding_evaluation; }
  };
  struct SampleState {
    bool done = false;
    uint32_t attempt = 0;  // of the request that works on it; 0: waits
  };
  struct Pending {
    Work work;
    std::vector<SampleState> samples;
    uint32_t num_done = 0;
    uint32_t num_waiting = 0;
    uint32_t attempts = 0;
  };
  using RequestKey = std::pair<GroupId, uint32_t>;  // (group, attempt)
  struct Request {
    WorkerName worker;
    PolicyVersion version = 0;
    std::set<uint32_t> remaining;
  };

  Generator* Find(const WorkerName& name);
  void Settle(Generator& generator, GroupId group, PolicyVersion version, uint32_t num_samples);
  // Ends a request: its remaining samples wait again. Returns their number.
  size_t EndRequest(std::map<RequestKey, Request>::iterator request);
  void PumpVersions(Generator& generator, Instant now, Outbox& out);
  Generator* Choose(const Work& work, Instant now);
  void Dispatch(Pending& pending, Generator& generator, Instant now, Outbox& out);

  Run run_;
  bool running_ = false;
  bool served_ = false;                          // some generator had a version of the run
  std::map<std::string, Generator> generators_;  // by worker id
  std::map<GroupId, Pending> pending_;           // until every sample is done
  std::set<GroupId> waiting_;                    // groups with samples to dispatch
  std::map<RequestKey, Request> requests_;
  std::vector<PolicyVersion> wanted_;
  std::optional<PolicyVersion> evaluation_;
  uint64_t unfinished_training_ = 0;    // samples
  uint64_t unfinished_evaluation_ = 0;  // samples
  uint64_t waiting_training_ = 0;       // groups
  std::string last_problem_;
  std::set<std::pair<HoldKey, StatusCode>> told_;  // of this run, by OnLoaded
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_FLEET_H_
