// SPDX-License-Identifier: Apache-2.0
//
// A simulated world around the orchestrator's engine: generators, a trainer, a weight store, a
// reward service, all with random delays, losses, duplicates and restarts drawn from one seed, on a
// simulated clock. What workers answer is a pure function of ids and versions, so two worlds with
// different seeds must lead to the same plans. Checks I1 and I2 on the way and aborts the test on a
// breach.
#ifndef TITAN_TESTS_SUPPORT_ORCHESTRATOR_SIMULATION_H_
#define TITAN_TESTS_SUPPORT_ORCHESTRATOR_SIMULATION_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "orchestrator/run_engine.h"

namespace titan::orchestrator::testing {

// Deterministic stream of numbers for delays and faults of the simulation (not of the product).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t Below(uint64_t n) { return HashFields(state_, ++count_) % n; }
  bool Chance(double p) { return static_cast<double>(Below(1000000)) < p * 1e6; }

 private:
  uint64_t state_;
  uint64_t count_ = 0;
};

struct WorldOptions {
  uint64_t seed = 1;
  int num_generators = 2;
  uint32_t max_versions = 3;
  uint32_t max_running_sequences = 16;
  uint32_t delay_max_ms = 50;               // of every answer
  double duplicate = 0;                     // a sample is delivered twice
  double break_stream = 0;                  // a rollout ends early with an error
  double generator_loss = 0;                // per rollout: its generator dies in the middle
  double reward_fault = 0;                  // per item: infrastructure fault
  double reward_error = 0;                  // per request: the call fails
  bool reward_refuses = false;              // every request: an argument is wrong
  double load_error = 0;                    // per load
  int refusing_generators = 0;              // the first of them refuse every version
  double release_error = 0;                 // per release and reset
  uint64_t releases_until_ms = UINT64_MAX;  // all of them fail from here ...
  uint64_t releases_from_ms = UINT64_MAX;   // ... to here, in the world's time
  double unpin_error = 0;                   // per unpin
  bool reward_service = true;
  bool generators = true;
  uint32_t slow_generator_ms = 0;    // generator-0 takes this much longer
  double trainable = 0.6;            // share of groups whose rewards differ
  double parity_difference_at = -1;  // step whose parity differs
  bool lie_about_version = false;
  double trainer_error_at = -1;
  uint32_t train_ms = 30;
  bool drop_rollouts = false;  // generators never answer
  std::string grader_version = "1";
  std::string trouble = "simulated";  // what peers that fail say
};

inline Dataset MakeDataset(uint32_t num_rows) {
  Dataset data;
  for (uint32_t i = 0; i < num_rows; ++i) {
    DataRow row;
    row.id = "row-" + std::to_string(i);
    row.prompt = "question " + std::to_string(i);
    row.rendered_prompt = row.prompt;
    row.prompt_token_ids = {1, static_cast<TokenId>(i + 2)};
    row.answer = std::to_string(i);
    row.metadata_json = "{}";
    data.rows.push_back(row);
  }
  return data;
}

inline JobSpec MakeSpec() {
  JobSpec spec;
  spec.name = "simulated";
  spec.seed = 7;
  spec.model.path = "model";
  spec.data.path = "data.jsonl";
  spec.data.held_out = 10;
  spec.schedule.max_age = 1;
  spec.schedule.steps = 8;
  spec.schedule.groups_per_step = 4;
  spec.rollout.samples_per_group = 4;
  spec.rollout.max_new_tokens = 9;
  spec.reward.grader = "numeric_match";
  spec.evaluation.every_steps = 3;
  spec.parity.share = 0.5;
  return spec;
}

class World {
 public:
  explicit World(WorldOptions options) : options_(options), dice_(options.seed) {
    // Workers join at random moments.
    At(1, [this] { Join("trainer", WorkerRole::kTrainer); });
    At(1, [this] { Join("weightstore", WorkerRole::kWeightStore); });
    if (options.reward_service) At(Delay(), [this] { Join("reward", WorkerRole::kReward); });
    for (int i = 0; options.generators && i < options.num_generators; ++i) {
      const std::string name = "generator-" + std::to_string(i);
      At(Delay(), [this, name] { Join(name, WorkerRole::kGenerator); });
    }
  }

  void Submit(const std::string& job_id, const JobSpec& spec, uint32_t num_rows = 40) {
    ASSERT_TRUE(CheckJobSpec(spec).problems.empty());
    SubmitJob submit;
    submit.job_id = job_id;
    submit.run_id = "run-" + job_id;
    submit.request_id = "request-" + job_id;
    submit.spec = std::make_shared<const JobSpec>(spec);
    submit.spec_bytes = "spec";
    submit.dataset = std::make_shared<const Dataset>(MakeDataset(num_rows));
    specs_[submit.run_id] = submit.spec;
    Deliver(submit);
  }

  // Jobs of an earlier life; before anything else.
  void Restore(std::vector<RestoredJob> jobs) {
    for (const RestoredJob& job : jobs) {
      specs_[job.info.run_id] = specs_[job.next_run_id] = job.info.spec;
    }
    engine.Restore(std::move(jobs), now_);
    Drain();
  }
  void Prepare(const std::string& job_id, const Status& status = OkStatus()) {
    Deliver(JobPrepared{job_id,
                        status,
                        status.ok() ? std::make_shared<const Dataset>(MakeDataset(40)) : nullptr,
                        {}});
  }

  // Runs until every job is final or the simulated time is over.
  void Run(uint64_t limit_seconds = 3600) {
    const Instant end = now_ + Millis(limit_seconds * 1000);
    while (now_ < end && !AllFinal()) Advance();
  }
  // Until the job has done `steps` steps.
  void RunToStep(const std::string& job_id, uint64_t steps) {
    const Instant end = now_ + Millis(3600 * 1000);
    while (now_ < end && Job(job_id).steps_done < steps && !IsFinal(Job(job_id).state)) Advance();
  }
  void RunFor(uint64_t ms) {
    const Instant end = now_ + Millis(ms);
    while (now_ < end) Advance();
  }

  const JobInfo& Job(const std::string& job_id) { return engine.jobs().at(job_id); }
  bool AllFinal() const {
    for (const auto& [id, job] : engine.jobs()) {
      if (!IsFinal(job.state)) return false;
    }
    return true;
  }
  void Deliver(const Event& event) {
    engine.Handle(event, now_);
    Drain();
  }
  void Kill(const std::string& worker_id, const std::string& reason = "killed") {
    const WorkerName name = workers_.at(worker_id);
    workers_.erase(worker_id);
    holds_.erase(worker_id);
    Deliver(WorkerLost{name, reason});
  }
  void Join(const std::string& worker_id, WorkerRole role) {
    WorkerReady ready;
    ready.name = {worker_id, std::to_string(++incarnations_)};
    holds_.erase(worker_id);
    Introduce(ready, role);
  }
  // The same life is introduced once more.
  void JoinAgain(const std::string& worker_id, WorkerRole role) {
    WorkerReady ready;
    ready.name = workers_.at(worker_id);
    Introduce(ready, role);
  }
  void Introduce(WorkerReady ready, WorkerRole role) {
    const std::string worker_id = ready.name.worker_id;
    ready.role = role;
    ready.max_versions = options_.max_versions;
    ready.max_running_sequences = options_.max_running_sequences;
    if (role == WorkerRole::kReward) ready.graders = {"numeric_match"};
    workers_[worker_id] = ready.name;
    Deliver(ready);
  }

  // Checks after the end: I1 for every admitted group of a job: it was trained, or it was closed
  // with a reason, never both.
  void CheckEveryGroupEndedOnce(const std::string& job_id = "job-1") {
    std::map<GroupId, int> admitted, closed, ended;
    std::set<GroupId> trainable, trained;
    std::set<Step> done;
    std::map<Step, std::vector<SampleId>> planned;
    std::map<SampleId, GroupId> group_of;
    for (const Fact& fact : facts) {
      if (fact.job_id != job_id) continue;
      if (const auto* f = std::get_if<GroupAdmitted>(&fact.body)) ++admitted[f->group];
      if (const auto* f = std::get_if<SampleGenerated>(&fact.body)) group_of[f->sample] = f->group;
      if (const auto* f = std::get_if<GroupClosed>(&fact.body)) {
        EXPECT_EQ(ended[f->group], 0) << "closed after its end";
        if (f->trainable) {
          ++closed[f->group];
          trainable.insert(f->group);
        } else {
          ++ended[f->group];
          EXPECT_FALSE(f->reason.empty());
        }
      }
      if (const auto* f = std::get_if<StepPlanned>(&fact.body)) planned[f->step] = f->samples;
      if (const auto* f = std::get_if<StepDone>(&fact.body)) {
        EXPECT_TRUE(done.insert(f->report.step).second) << "step done twice";
        std::set<GroupId> groups;
        for (const SampleId sample : planned.at(f->report.step)) groups.insert(group_of.at(sample));
        for (const GroupId group : groups) {
          EXPECT_TRUE(trained.insert(group).second) << "trained twice";
          ++ended[group];
          EXPECT_TRUE(trainable.count(group) != 0) << "trained but not trainable";
        }
      }
    }
    for (const auto& [group, times] : admitted) {
      EXPECT_EQ(times, 1) << group.value;
      EXPECT_LE(closed[group], 1) << group.value;
      EXPECT_EQ(ended[group], 1) << group.value;
    }
    EXPECT_EQ(ended.size(), admitted.size());
    // A trainable group of a step that is done was trained; no other step may be done.
    for (const GroupId group : trainable) {
      if (done.count(StepOf(group)) != 0) {
        EXPECT_TRUE(trained.count(group) != 0) << group.value;
      }
    }
  }

  RunEngine engine;
  std::vector<Fact> facts;
  std::map<Step, std::string> plan_digests;           // of the run in course
  std::map<std::string, uint64_t> samples_by_worker;  // training samples delivered
  std::vector<TrainStep> train_steps;
  std::vector<std::string> messages;
  std::vector<StepReport> step_reports;
  uint64_t rollouts_started = 0;
  std::map<std::string, uint64_t> loads;  // by worker id
  uint64_t resets = 0;
  std::map<Step, std::set<uint32_t>> rollout_deadlines;  // of training
  uint64_t score_requests = 0;
  uint32_t evaluations_running_max = 0;

 private:
  uint64_t Delay() { return 1 + dice_.Below(options_.delay_max_ms + 1); }
  void At(uint64_t in_ms, std::function<void()> what) {
    agenda_.emplace(now_ + Millis(in_ms), std::move(what));
  }
  void Advance() {
    const Instant next_tick = now_ + Millis(50);
    if (!agenda_.empty() && agenda_.begin()->first <= next_tick) {
      now_ = std::max(now_, agenda_.begin()->first);
      const auto what = std::move(agenda_.begin()->second);
      agenda_.erase(agenda_.begin());
      what();
      return;
    }
    now_ = next_tick;
    engine.Tick(now_);
    Drain();
  }
  bool Alive(const WorkerName& name) const {
    const auto found = workers_.find(name.worker_id);
    return found != workers_.end() && found->second == name;
  }
  void Drain() {
    for (Actions actions = engine.TakeActions(); !actions.empty(); actions = engine.TakeActions()) {
      for (Fact& fact : actions.facts) {
        if (const auto* planned = std::get_if<StepPlanned>(&fact.body)) {
          plan_digests[planned->step] = planned->plan_digest;
        }
        facts.push_back(std::move(fact));
      }
      for (Action& action : actions.actions) {
        EXPECT_LE(action.after_facts, facts.size());
        std::visit([this](auto& body) { Do(body); }, action.body);
      }
    }
  }

  void Do(const StartRun& a) {
    const std::string run = a.run_id;
    committed_[run] = 0;
    digests_[run] = "start";
    At(Delay(), [this, run] { Deliver(RunStarted{run, OkStatus(), "digest-0"}); });
  }
  bool IsLive(const std::string& run, PolicyVersion version) const {
    const uint64_t committed = committed_.at(run);
    const uint64_t age = specs_.at(run)->schedule.max_age;
    if (version > committed) return false;
    if (version + age + 1 >= committed) return true;
    for (const auto& [worker, held] : holds_) {
      if (held.count({false, version}) != 0) return true;
    }
    return false;
  }
  void Do(const LoadVersion& a) {
    const LoadVersion load = a;
    At(Delay(), [this, load] {
      if (!Alive(load.worker)) return;
      Status status = OkStatus();
      ++loads[load.worker.worker_id];
      const std::string& id = load.worker.worker_id;
      if (id.starts_with("generator-") && std::stoi(id.substr(10)) < options_.refusing_generators) {
        status = InvalidArgument("its cache is too small");
      } else if (dice_.Chance(options_.load_error)) {
        status = Unavailable(options_.trouble);
      } else if (load.evaluation ? !pinned_.contains(load.version)
                                 : !IsLive(load.run_id, load.version)) {
        status = NotFound("no such version");
      } else {
        holds_[load.worker.worker_id].insert({load.evaluation, load.version});
        EXPECT_LE(holds_[load.worker.worker_id].size(), options_.max_versions);
      }
      Deliver(VersionLoaded{load.worker, load.run_id, load.version, load.evaluation, status});
    });
  }
  void Do(const ReleaseVersion& a) {
    const ReleaseVersion release = a;
    At(Delay(), [this, release] {
      if (!Alive(release.worker)) return;
      const Status status = ReleaseStatus();
      if (status.ok()) {
        holds_[release.worker.worker_id].erase({release.evaluation, release.version});
      }
      Deliver(VersionReleased{release.worker, release.run_id, release.version, release.evaluation,
                              status});
    });
  }
  Status ReleaseStatus() {
    const bool dead = options_.releases_until_ms != UINT64_MAX &&
                      now_ - start_ >= Millis(options_.releases_until_ms) &&
                      now_ - start_ < Millis(options_.releases_from_ms);
    return dead || dice_.Chance(options_.release_error) ? Unavailable(options_.trouble)
                                                        : OkStatus();
  }
  void Do(const ResetGenerator& a) {
    ++resets;
    const WorkerName worker = a.worker;
    At(Delay(), [this, worker] {
      if (!Alive(worker)) return;
      const Status status = ReleaseStatus();
      if (status.ok()) holds_[worker.worker_id].clear();
      Deliver(GeneratorReset{worker, status});
    });
  }
  static std::shared_ptr<const Reply> MakeReply(SampleId sample, PolicyVersion version,
                                                uint32_t max_new_tokens) {
    auto reply = std::make_shared<Reply>();
    const uint64_t bits = HashFields(sample.value, version);
    const uint64_t num = 1 + bits % max_new_tokens;
    for (uint64_t i = 0; i < num; ++i) {
      reply->token_ids.push_back(static_cast<TokenId>(HashFields(bits, i) % 1000));
      reply->logprobs.push_back(-static_cast<float>(HashFields(bits, i) % 100) / 16);
    }
    return reply;
  }
  void Do(const StartRollout& a) {
    ++rollouts_started;
    if (!a.evaluation) rollout_deadlines[StepOf(a.group)].insert(a.deadline_ms);
    if (options_.drop_rollouts) return;
    EXPECT_TRUE(holds_[a.worker.worker_id].count({a.evaluation, a.version}) != 0)
        << "a rollout of a version that is not held";
    const uint64_t extra = a.worker.worker_id == "generator-0" ? options_.slow_generator_ms : 0;
    uint64_t last = 0;
    bool broken = dice_.Chance(options_.break_stream);
    for (size_t i = 0; i < a.sample_indexes.size(); ++i) {
      if (broken && dice_.Chance(0.5)) continue;
      SampleArrived sample;
      sample.worker = a.worker;
      sample.run_id = a.run_id;
      sample.group = a.group;
      sample.attempt = a.attempt;
      sample.sample_index = a.sample_indexes[i];
      EXPECT_EQ(a.sample_ids[i], MakeSampleId(a.group, a.sample_indexes[i]));
      sample.reply = MakeReply(a.sample_ids[i], a.version, a.max_new_tokens);
      sample.finish = FinishReason::kStop;
      const PolicyVersion told = a.version + (options_.lie_about_version ? 1 : 0);
      sample.spans = {{told, static_cast<uint32_t>(sample.reply->token_ids.size())}};
      sample.sequences_running_max = 1 + dice_.Below(8);
      sample.batch_fingerprint = dice_.Below(1u << 30);
      const int copies = dice_.Chance(options_.duplicate) ? 2 : 1;
      for (int copy = 0; copy < copies; ++copy) {
        const uint64_t wait = extra + Delay();
        last = std::max(last, wait);
        At(wait, [this, sample] {
          // A dead process may still have bytes under way.
          if (!Alive(sample.worker) && !dice_.Chance(0.3)) return;
          if (!IsEvaluation(sample.group)) ++samples_by_worker[sample.worker.worker_id];
          Deliver(sample);
        });
      }
    }
    RolloutEnded ended{a.worker, a.run_id, a.group, a.attempt,
                       broken ? Unavailable(options_.trouble) : OkStatus()};
    At(last + 1, [this, ended] { Deliver(ended); });
    if (!dice_.Chance(options_.generator_loss)) return;
    const WorkerName victim = a.worker;
    At(Delay(), [this, victim] {
      if (!Alive(victim)) return;
      Kill(victim.worker_id, options_.trouble);
      At(500 + Delay(), [this, victim] { Join(victim.worker_id, WorkerRole::kGenerator); });
    });
  }
  void Do(const CancelRollouts&) {}
  void Do(const Score& a) {
    ++score_requests;
    ScoreAnswered answer;
    answer.run_id = a.run_id;
    answer.request = a.request;
    answer.grader_version = options_.grader_version;
    if (dice_.Chance(options_.reward_error)) answer.status = Unavailable(options_.trouble);
    if (options_.reward_refuses) answer.status = InvalidArgument("parameters.tolerance: is text");
    for (const ScoreItem& item : a.items) {
      ScoreOutcome outcome;
      if (dice_.Chance(options_.reward_fault)) {
        outcome.reason = options_.trouble;
      } else {
        outcome.kind = ScoreOutcome::Kind::kValue;
        // Groups are recognised by their row: all of its samples are equal, or differ by sample.
        const bool differs =
            HashFields(uint64_t{item.data_row}, uint64_t{99}) % 1000 < options_.trainable * 1000;
        outcome.value = differs ? static_cast<double>(item.sample.value % 2) : 0.0;
      }
      answer.results.push_back(outcome);
    }
    const WorkerName reward = a.reward;
    At(Delay(), [this, reward, answer] {
      if (Alive(reward)) Deliver(answer);
    });
  }
  void Do(const TrainStep& a) {
    const JobSpec& spec = *specs_.at(a.run_id);
    EXPECT_EQ(a.step, committed_.at(a.run_id));
    EXPECT_EQ(a.behaviour_version, spec.VersionOf(a.step));
    EXPECT_EQ(a.plan_digest, PlanDigest(a.samples));
    for (const PlannedSample& sample : a.samples) {
      // I2: what is trained was made under exactly the version that the schedule names.
      EXPECT_EQ(StepOf(sample.group), a.step);
      EXPECT_EQ(
          sample.reply->token_ids,
          MakeReply(sample.sample, spec.VersionOf(a.step), spec.rollout.max_new_tokens)->token_ids);
    }
    train_steps.push_back(a);
    TryCommit(a, options_.train_ms + Delay());
  }
  void TryCommit(const TrainStep& a, uint64_t in_ms) {
    At(in_ms, [this, a] {
      const JobSpec& spec = *specs_.at(a.run_id);
      // The ring: S + 3 slots; a new version waits while they are all in use.
      std::set<PolicyVersion> live;
      for (PolicyVersion v = 0; v <= committed_.at(a.run_id); ++v) {
        if (v + spec.schedule.max_age >= committed_.at(a.run_id)) live.insert(v);
      }
      for (const auto& [worker, held] : holds_) {
        for (const auto& [evaluation, version] : held) {
          if (!evaluation) live.insert(version);
        }
      }
      if (live.size() + 1 > spec.schedule.max_age + 3) {
        TryCommit(a, 20);
        return;
      }
      StepTrained trained;
      trained.run_id = a.run_id;
      trained.step = a.step;
      if (static_cast<double>(a.step) == options_.trainer_error_at) {
        trained.status = Internal(options_.trouble);
      }
      committed_[a.run_id] = a.step + 1;
      if (a.num_groups_trained > 0) {
        digests_[a.run_id] = ToHex(Hash64(digests_[a.run_id] + a.plan_digest));
      }
      TrainResult& result = trained.result;
      result.version = a.step + 1;
      result.weights_digest = digests_[a.run_id];
      result.updated = a.num_groups_trained > 0;
      for (const PlannedSample& sample : a.samples) {
        if (sample.trained) result.tokens_trained += sample.reply->token_ids.size();
        if (sample.compared) result.parity.tokens_compared += sample.reply->token_ids.size();
      }
      if (static_cast<double>(a.step) == options_.parity_difference_at) {
        result.parity.tokens_differing = 1;
        result.parity.logprob_difference_max = 1e-6;
        result.first_difference = "sample 1 token 2 " + options_.trouble;
      }
      Deliver(trained);
    });
  }
  void Do(const PinEvaluation& a) {
    const PinEvaluation pin = a;
    At(Delay(), [this, pin] {
      Status status = OkStatus();
      if (pinned_.size() >= specs_.at(pin.run_id)->evaluation.slots) {
        status = FailedPrecondition("every evaluation slot is in use");
      } else if (!IsLive(pin.run_id, pin.version)) {
        status = FailedPrecondition("version is retired");
      } else {
        pinned_.insert(pin.version);
      }
      Deliver(EvaluationPinned{pin.run_id, pin.version, status});
    });
  }
  void Do(const UnpinEvaluation& a) {
    const UnpinEvaluation unpin = a;
    for (const auto& [worker, held] : holds_) {
      if (engine.jobs().begin()->second.state == JobState::kRunning) {
        EXPECT_EQ(held.count({true, unpin.version}), 0u) << "unpinned while held";
      }
    }
    At(Delay(), [this, unpin] {
      const bool fails = dice_.Chance(options_.unpin_error);
      if (!fails) pinned_.erase(unpin.version);
      Deliver(EvaluationUnpinned{unpin.run_id, unpin.version,
                                 fails ? Unavailable(options_.trouble) : OkStatus()});
    });
  }
  void Do(const EndRun& a) {
    const std::string run = a.run_id;
    pinned_.clear();  // with everything of the run
    At(Delay(), [this, run] { Deliver(RunEnded{run}); });
  }
  void Do(const ReportJob&) {}
  void Do(const ReportStep& a) { step_reports.push_back(a.report); }
  void Do(const ReportEvaluation&) {}
  void Do(const ReportMessage& a) { messages.push_back(a.text); }

  WorldOptions options_;
  Dice dice_;
  const Instant start_{Millis(1000000)};
  Instant now_ = start_;
  std::multimap<Instant, std::function<void()>> agenda_;
  std::map<std::string, WorkerName> workers_;
  uint64_t incarnations_ = 0;
  std::map<std::string, std::set<std::pair<bool, PolicyVersion>>> holds_;  // by worker id
  std::map<std::string, std::shared_ptr<const JobSpec>> specs_;            // by run id
  std::map<std::string, PolicyVersion> committed_;
  std::map<std::string, std::string> digests_;
  std::set<PolicyVersion> pinned_;
};

}  // namespace titan::orchestrator::testing

#endif  // TITAN_TESTS_SUPPORT_ORCHESTRATOR_SIMULATION_H_
