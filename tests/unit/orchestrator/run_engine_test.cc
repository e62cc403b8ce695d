// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever the fleet does, the plans are the same, the invariants hold, and every job ends
// with a reason. Method: the engine in a simulated world (tests/support/orchestrator_simulation.h),
// many seeds.
#include "orchestrator/run_engine.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "orchestrator/canonical.h"
#include "tests/support/orchestrator_simulation.h"

namespace titan::orchestrator {
namespace {

using testing::MakeSpec;
using testing::World;
using testing::WorldOptions;

WorldOptions Rough(uint64_t seed) {
  WorldOptions options;
  options.seed = seed;
  options.num_generators = 1 + static_cast<int>(seed % 3);
  options.max_running_sequences = 4 + 7 * (seed % 4);
  options.delay_max_ms = 5 + 100 * (seed % 3);
  options.duplicate = 0.2;
  options.break_stream = 0.1;
  options.generator_loss = 0.03;
  options.reward_fault = 0.05;
  options.reward_error = 0.05;
  options.load_error = 0.1;
  options.release_error = 0.2;
  options.unpin_error = 0.2;
  options.slow_generator_ms = seed % 2 == 0 ? 300 : 0;
  return options;
}

// Lines that decide results: evaluations may be skipped by timing when the slot is busy.
std::vector<std::string> ResultLines(const std::vector<Fact>& facts) {
  std::vector<Fact> kept;
  for (const Fact& fact : facts) {
    if (!std::holds_alternative<EvaluationDone>(fact.body)) kept.push_back(fact);
  }
  return CanonicalForm(kept);
}

TEST(RunEngineTest, PlansAreThatOfAQuietWorldWhateverHappens) {
  for (const char* on_untrainable : {"replace", "drop"}) {
    for (const uint32_t max_age : {0u, 1u, 3u}) {
      JobSpec spec = MakeSpec();
      spec.schedule.on_untrainable = on_untrainable;
      spec.schedule.max_age = max_age;
      World quiet{WorldOptions{}};
      quiet.Submit("job-1", spec);
      quiet.Run();
      ASSERT_EQ(quiet.Job("job-1").state, JobState::kSucceeded) << quiet.Job("job-1").reason;
      ASSERT_EQ(quiet.plan_digests.size(), spec.schedule.steps);
      const auto expected = ResultLines(quiet.facts);
      for (uint64_t seed = 1; seed <= 12; ++seed) {
        World world{Rough(seed)};
        world.Submit("job-1", spec);
        world.Run();
        ASSERT_EQ(world.Job("job-1").state, JobState::kSucceeded)
            << world.Job("job-1").reason << " seed " << seed;
        EXPECT_EQ(world.plan_digests, quiet.plan_digests) << "seed " << seed;
        EXPECT_EQ(world.Job("job-1").last_step->weights_digest,
                  quiet.Job("job-1").last_step->weights_digest);
        EXPECT_EQ(ResultLines(world.facts), expected) << "seed " << seed;
        world.CheckEveryGroupEndedOnce();
      }
    }
  }
}

TEST(RunEngineTest, AnotherSeedOfTheJobGivesOtherPlans) {
  JobSpec spec = MakeSpec();
  World a{WorldOptions{}}, b{WorldOptions{}};
  a.Submit("job-1", spec);
  a.Run();
  spec.seed = 8;
  b.Submit("job-1", spec);
  b.Run();
  EXPECT_NE(a.plan_digests, b.plan_digests);
}

TEST(RunEngineTest, FewVersionsPerGeneratorAreEnough) {
  for (const uint32_t max_versions : {1u, 2u}) {
    JobSpec spec = MakeSpec();
    spec.schedule.max_age = 3;
    WorldOptions options;
    options.max_versions = max_versions;
    options.max_running_sequences = 4;
    World world{options};
    world.Submit("job-1", spec);
    world.Run();
    ASSERT_EQ(world.Job("job-1").state, JobState::kSucceeded) << world.Job("job-1").reason;
    EXPECT_TRUE(world.Job("job-1").evaluations.back().skipped_reason.empty());
    EXPECT_EQ(world.Job("job-1").evaluations.back().version, 8u);
  }
}

TEST(RunEngineTest, BothGeneratorsGetWork) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.max_running_sequences = 64;
    World world{options};
    world.Submit("job-1", MakeSpec());
    world.Run();
    const double total =
        world.samples_by_worker["generator-0"] + world.samples_by_worker["generator-1"];
    EXPECT_GT(world.samples_by_worker["generator-0"] / total, 0.2) << seed;
    EXPECT_GT(world.samples_by_worker["generator-1"] / total, 0.2) << seed;
  }
}

TEST(RunEngineTest, GenerationOfTheNextStepOverlapsTraining) {
  WorldOptions options;
  options.train_ms = 400;
  World world{options};
  world.Submit("job-1", MakeSpec());
  world.Run();
  uint32_t before = 0;
  for (const StepReport& report : world.step_reports) {
    EXPECT_EQ(report.age, report.step == 0 ? 0u : 1u);
    before += report.step > 0 && report.generated_before_previous_commit;
  }
  EXPECT_GE(before, 7u);
  JobSpec on_policy = MakeSpec();
  on_policy.schedule.max_age = 0;
  World serial{options};
  serial.Submit("job-1", on_policy);
  serial.Run();
  for (const StepReport& report : serial.step_reports) {
    EXPECT_FALSE(report.generated_before_previous_commit);
  }
}

TEST(RunEngineTest, ParityComparesTheNamedGroups) {
  JobSpec spec = MakeSpec();
  spec.schedule.on_untrainable = "drop";
  World world{WorldOptions{}};
  world.Submit("job-1", spec);
  world.Run();
  ASSERT_EQ(world.train_steps.size(), 8u);
  bool untrained_compared = false;
  for (const TrainStep& step : world.train_steps) {
    std::set<GroupId> compared;
    for (const PlannedSample& sample : step.samples) {
      if (sample.compared) compared.insert(sample.group);
      EXPECT_TRUE(sample.trained || sample.compared);
      untrained_compared |= !sample.trained;
      if (!sample.trained) {
        EXPECT_EQ(sample.advantage, 0.0);
      }
    }
    // ceil(0.5 * 4) = 2, by the smallest hash of (seed, group id) among candidate 0.
    std::vector<std::pair<uint64_t, GroupId>> ranked;
    for (uint32_t slot = 0; slot < 4; ++slot) {
      const GroupId id = MakeGroupId(step.step, slot, 0);
      ranked.emplace_back(HashFields(spec.seed, id.value), id);
    }
    std::sort(ranked.begin(), ranked.end());
    EXPECT_EQ(compared, (std::set<GroupId>{ranked[0].second, ranked[1].second}));
  }
  EXPECT_TRUE(untrained_compared);
  spec.schedule.max_age = 0;
  World on_policy{WorldOptions{}};
  on_policy.Submit("job-1", spec);
  on_policy.Run();
  for (const TrainStep& step : on_policy.train_steps) {
    for (const PlannedSample& sample : step.samples) {
      EXPECT_TRUE(sample.trained && sample.compared);
    }
  }
}

TEST(RunEngineTest, UntrainableSlotsAreReplacedInOrderOfCandidates) {
  JobSpec spec = MakeSpec();
  WorldOptions options;
  options.trainable = 0.3;
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  std::map<GroupId, bool> trainable;
  for (const Fact& fact : world.facts) {
    if (const auto* f = std::get_if<GroupClosed>(&fact.body)) trainable[f->group] = f->trainable;
  }
  bool replaced = false;
  for (const auto& [group, is_trainable] : trainable) {
    for (uint32_t candidate = 0; candidate < CandidateOf(group); ++candidate) {
      EXPECT_FALSE(trainable.at(MakeGroupId(StepOf(group), SlotOf(group), candidate)));
      replaced = true;
    }
    EXPECT_LT(CandidateOf(group), spec.schedule.max_candidates);
  }
  EXPECT_TRUE(replaced);
  // Trained groups stand in slot order.
  for (const TrainStep& step : world.train_steps) {
    uint32_t last = 0;
    for (const PlannedSample& sample : step.samples) {
      if (!sample.trained) continue;
      EXPECT_GE(SlotOf(sample.group), last);
      last = SlotOf(sample.group);
    }
  }
}

TEST(RunEngineTest, AnEmptySlotFailsTheJobWhenAskedTo) {
  JobSpec spec = MakeSpec();
  spec.schedule.on_empty_slot = "fail";
  spec.schedule.max_candidates = 1;
  WorldOptions options;
  options.trainable = 0.3;
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kFailed);
  EXPECT_NE(world.Job("job-1").reason.find("on_empty_slot"), std::string::npos);
  world.CheckEveryGroupEndedOnce();
}

TEST(RunEngineTest, DataThatNeverTrainsEndsWithCounts) {
  JobSpec spec = MakeSpec();
  spec.schedule.steps = 100000;
  spec.schedule.on_untrainable = "drop";
  WorldOptions options;
  options.trainable = 0;
  options.train_ms = 1;
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kFailed);
  EXPECT_NE(world.Job("job-1").reason.find("zero_variance: 200"), std::string::npos)
      << world.Job("job-1").reason;
  world.CheckEveryGroupEndedOnce();
}

TEST(RunEngineTest, EvaluationsAreMadeAtStartEveryKAndEnd) {
  JobSpec spec = MakeSpec();
  spec.schedule.steps = 7;
  WorldOptions options;
  options.train_ms = 20000;  // time enough for each evaluation
  options.unpin_error = 0.6;
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  const JobInfo& job = world.Job("job-1");
  ASSERT_EQ(job.state, JobState::kSucceeded) << job.reason;
  ASSERT_EQ(job.evaluations.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(job.evaluations[i].version, (std::vector<uint64_t>{0, 3, 6, 7})[i]);
    EXPECT_EQ(job.evaluations[i].questions, 10u);
    EXPECT_TRUE(job.evaluations[i].skipped_reason.empty());
  }
}

TEST(RunEngineTest, TrainingNeverWaitsForAnEvaluationAndTheLastOneIsMade) {
  JobSpec spec = MakeSpec();
  spec.evaluation.every_steps = 1;
  spec.data.held_out = 30;
  WorldOptions options;
  options.train_ms = 1;
  options.max_running_sequences = 4;
  options.slow_generator_ms = 200;
  options.num_generators = 1;
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  const JobInfo& job = world.Job("job-1");
  ASSERT_EQ(job.state, JobState::kSucceeded) << job.reason;
  size_t skipped = 0;
  for (const EvaluationReport& report : job.evaluations) skipped += !report.skipped_reason.empty();
  EXPECT_GT(skipped, 0u);
  EXPECT_EQ(job.evaluations.size(), 9u);
  EXPECT_EQ(job.evaluations.back().version, 8u);
  EXPECT_TRUE(job.evaluations.back().skipped_reason.empty());
}

TEST(RunEngineTest, VersionsWaitForTheirEvaluationInSlotsOfTheirOwn) {
  std::vector<size_t> made;
  for (const uint32_t slots : {1u, 3u, 8u}) {
    JobSpec spec = MakeSpec();
    spec.evaluation.every_steps = 1;
    spec.evaluation.slots = slots;
    spec.data.held_out = 30;
    WorldOptions options;
    options.train_ms = 1;
    options.max_running_sequences = 4;
    options.slow_generator_ms = 200;
    options.num_generators = 1;
    options.unpin_error = 0.3;
    World world{options};
    world.Submit("job-1", spec);
    world.Run();
    const JobInfo& job = world.Job("job-1");
    ASSERT_EQ(job.state, JobState::kSucceeded) << job.reason;
    ASSERT_EQ(job.evaluations.size(), 9u);
    std::set<uint64_t> versions;
    size_t num_made = 0;
    for (const EvaluationReport& report : job.evaluations) {
      versions.insert(report.version);
      num_made += report.skipped_reason.empty();
    }
    EXPECT_EQ(versions.size(), 9u);
    made.push_back(num_made);
  }
  EXPECT_LT(made[0], made[1]);
  EXPECT_LE(made[1], made[2]);
  EXPECT_EQ(made[2], 9u);
}

TEST(RunEngineTest, HeldOutRowsAreNeverTrained) {
  World world{Rough(3)};
  JobSpec spec = MakeSpec();
  spec.schedule.steps = 30;
  world.Submit("job-1", spec);
  world.Run();
  const auto order = DataOrder::Create(testing::MakeDataset(40), spec.seed, spec.data.held_out);
  const std::set<uint32_t> held(order->held_out_rows().begin(), order->held_out_rows().end());
  size_t trained = 0;
  for (const TrainStep& step : world.train_steps) {
    for (const PlannedSample& sample : step.samples) {
      EXPECT_EQ(held.count(sample.data_row), 0u);
      ++trained;
    }
  }
  EXPECT_GT(trained, 100u);
}

TEST(RunEngineTest, CancelEndsEveryGroup) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world{Rough(seed)};
    world.Submit("job-1", MakeSpec());
    world.Submit("job-2", MakeSpec());
    world.RunFor(seed * 150);
    world.Deliver(CancelJob{"job-1", "c", "enough"});
    world.RunFor(1000);
    world.Deliver(CancelJob{"job-1", "c", "enough"});
    world.Run();
    EXPECT_EQ(world.Job("job-1").state, JobState::kCancelled);
    EXPECT_EQ(world.Job("job-1").reason, "enough");
    EXPECT_EQ(world.Job("job-2").state, JobState::kSucceeded) << world.Job("job-2").reason;
    world.CheckEveryGroupEndedOnce("job-1");
    world.CheckEveryGroupEndedOnce("job-2");
  }
  World world{WorldOptions{}};
  world.Submit("job-1", MakeSpec());
  world.RunToStep("job-1", 3);
  world.Deliver(CancelJob{"job-1", "c", "enough"});
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kCancelled);
  world.CheckEveryGroupEndedOnce();
}

TEST(RunEngineTest, GroupsThatWaitForTheirTrainingEndWithTheJob) {
  WorldOptions options;
  options.train_ms = 100000;
  World world{options};
  world.Submit("job-1", MakeSpec());
  world.RunFor(20000);  // step 0 trains, step 1 is complete
  const auto closed_trainable = [&] {
    return std::count_if(world.facts.begin(), world.facts.end(), [](const Fact& fact) {
      const auto* f = std::get_if<GroupClosed>(&fact.body);
      return f != nullptr && f->trainable;
    });
  };
  ASSERT_EQ(closed_trainable(), 8);
  world.Deliver(CancelJob{"job-1", "c", "enough"});
  world.Run();
  world.CheckEveryGroupEndedOnce();
}

TEST(RunEngineTest, AGeneratorThatGivesNothingBackIsResetBeforeTheNextJob) {
  WorldOptions options;
  options.releases_until_ms = 0;
  options.releases_from_ms = 60000;
  options.max_versions = 2;
  World world{options};
  world.Submit("job-1", MakeSpec());
  world.Submit("job-2", MakeSpec());
  world.RunFor(5000);
  world.Deliver(CancelJob{"job-1", "c", "enough"});
  world.RunFor(30000);
  EXPECT_EQ(world.Job("job-1").state, JobState::kCancelled);
  EXPECT_GT(world.resets, 2u);  // tried again
  world.Run();
  EXPECT_EQ(world.Job("job-2").state, JobState::kSucceeded) << world.Job("job-2").reason;
  world.CheckEveryGroupEndedOnce("job-2");
}

TEST(RunEngineTest, AGeneratorMayBeIntroducedTwice) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    WorldOptions options;
    options.seed = seed;
    World world{options};
    world.Submit("job-1", MakeSpec());
    world.RunFor(300);
    for (int i = 0; i < 20; ++i) {
      world.RunFor(20 + seed);
      world.JoinAgain("generator-0", WorkerRole::kGenerator);
    }
    world.Join("generator-1", WorkerRole::kGenerator);  // another life, its end was not told
    world.Run();
    EXPECT_EQ(world.Job("job-1").state, JobState::kSucceeded) << world.Job("job-1").reason;
    world.CheckEveryGroupEndedOnce();
  }
}

TEST(RunEngineTest, StepZeroHasItsOwnDeadline) {
  JobSpec spec = MakeSpec();
  spec.deadlines.first_step_ms = 900000;
  spec.deadlines.step_ms = 70000;
  World world{WorldOptions{}};
  world.Submit("job-1", spec);
  world.Run();
  ASSERT_EQ(world.Job("job-1").state, JobState::kSucceeded) << world.Job("job-1").reason;
  for (const TrainStep& step : world.train_steps) {
    EXPECT_EQ(step.deadline_ms, step.step == 0 ? 900000u : 70000u);
  }
  for (const auto& [step, deadlines] : world.rollout_deadlines) {
    EXPECT_EQ(deadlines, (std::set<uint32_t>{step == 0 ? 900000u : 70000u}));
  }
}

TEST(RunEngineTest, AStepWithoutTrainingSaysSo) {
  JobSpec spec = MakeSpec();
  spec.schedule.on_untrainable = "drop";
  WorldOptions options;
  options.trainable = 0;
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  EXPECT_EQ(std::count_if(world.messages.begin(), world.messages.end(),
                          [](const std::string& m) {
                            return m.find("trained nothing") != std::string::npos;
                          }),
            8);
}

// Why a job of this spec ends in this world.
std::string ReasonOfFailure(WorldOptions options, const JobSpec& spec = MakeSpec(),
                            const std::string& kill = "", uint64_t at_step = 2) {
  World world{options};
  world.Submit("job-1", spec);
  if (!kill.empty()) {
    world.RunToStep("job-1", at_step);
    world.Kill(kill);
  }
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kFailed);
  world.CheckEveryGroupEndedOnce();
  return world.Job("job-1").reason;
}

TEST(RunEngineTest, EveryFailureHasItsReason) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(ReasonOfFailure({}, MakeSpec(), "trainer"),
      "the trainer (worker trainer) was lost before step 2 could be trained (killed); titanctl "
      "logs "
      "trainer shows its last words; start the cluster anew");
  has(ReasonOfFailure({}, MakeSpec(), "weightstore"),
      "the weight store (worker weightstore) was lost ");
  WorldOptions options;
  options.num_generators = 1;
  has(ReasonOfFailure(options, MakeSpec(), "generator-0"),
      "no generator (generator-0 was lost: killed) for deadlines.workers_ms (30000 ms); titanctl "
      "status shows who runs");
  JobSpec misspelt = MakeSpec();
  misspelt.reward.grader = "numerc_match";
  has(ReasonOfFailure({}, misspelt), "grader numerc_match (did you mean numeric_match?)");
  misspelt.reward.grader = "judge";
  has(ReasonOfFailure({}, misspelt), "grader judge (there is: numeric_match)");
  options = {};
  options.reward_fault = 1;
  has(ReasonOfFailure(options), "deadlines.reward_ms");
  options = {};
  options.reward_error = 1;
  has(ReasonOfFailure(options), "deadlines.reward_ms");
  options = {};
  options.reward_refuses = true;
  has(ReasonOfFailure(options), "refuses: parameters.tolerance");
  options = {};
  options.drop_rollouts = true;
  has(ReasonOfFailure(options), "deadlines.first_step_ms");
  options = {};
  options.load_error = 1;
  has(ReasonOfFailure(options), "could not load version 0");
  options = {};
  options.lie_about_version = true;
  has(ReasonOfFailure(options), "asked for version 0");
  options = {};
  options.trainer_error_at = 3;
  has(ReasonOfFailure(options), "the trainer (worker trainer) failed in step 3");
  options = {};
  options.parity_difference_at = 2;
  has(ReasonOfFailure(options), "differ in step 2");
}

TEST(RunEngineTest, AParityDifferenceCanBeAnAlarmOnly) {
  WorldOptions options;
  options.parity_difference_at = 2;
  JobSpec spec = MakeSpec();
  spec.parity.on_difference = "alarm";
  World world{options};
  world.Submit("job-1", spec);
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kSucceeded);
  EXPECT_EQ(world.Job("job-1").parity.tokens_differing, 1u);
  EXPECT_TRUE(std::any_of(world.messages.begin(), world.messages.end(), [](const std::string& m) {
    return m.find("ALARM") != std::string::npos;
  }));
}

// Long before a deadline says why, and not with every try.
TEST(RunEngineTest, WatchersHearOnceWhyAGeneratorDoesNotLoad) {
  WorldOptions options;
  options.load_error = 1;
  options.num_generators = 1;
  World world{options};
  world.Submit("job-1", MakeSpec());
  world.RunFor(60'000);
  // A generator that dies of it, starts anew and fails again is no news, under whatever name.
  for (int i = 0; i < 5; ++i) {
    world.Kill("generator-0");
    world.Join("generator-0", WorkerRole::kGenerator);
    world.Join("other-" + std::to_string(i), WorkerRole::kGenerator);
    world.RunFor(5'000);
    world.Kill("other-" + std::to_string(i));
  }
  EXPECT_EQ(world.Job("job-1").state, JobState::kRunning);
  EXPECT_EQ(std::count_if(world.messages.begin(), world.messages.end(),
                          [](const std::string& message) {
                            return message.find("could not load version 0: simulated") !=
                                   std::string::npos;
                          }),
            2);  // as a policy, and for evaluation
}

TEST(RunEngineTest, ARewardServiceMayComeBackInTime) {
  World world{WorldOptions{}};
  world.Submit("job-1", MakeSpec());
  world.RunToStep("job-1", 2);
  world.Kill("reward");
  world.RunFor(5000);
  world.Join("reward", WorkerRole::kReward);
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kSucceeded) << world.Job("job-1").reason;
}

RestoredJob OfAnEarlierLife(const std::string& id, JobState state) {
  RestoredJob job;
  job.info.job_id = id;
  job.info.run_id = "run-" + id;
  job.info.request_id = "request-" + id;
  job.info.state = state;
  job.info.spec = std::make_shared<const JobSpec>(MakeSpec());
  job.spec_bytes = "spec";
  job.next_run_id = "next-" + id;
  return job;
}

TEST(RunEngineTest, JobsThatHadBegunInAnEarlierLifeEndWithWords) {
  RestoredJob running = OfAnEarlierLife("job-2", JobState::kRunning);
  running.info.steps_done = 3;
  RestoredJob cancelled = OfAnEarlierLife("job-3", JobState::kStopping);
  cancelled.info.reason = "not needed";
  cancelled.cancelled = true;
  RestoredJob failing = OfAnEarlierLife("job-4", JobState::kStopping);
  failing.info.reason = "differ in step 2";
  RunEngine engine;
  engine.Restore({OfAnEarlierLife("job-1", JobState::kSucceeded), running, cancelled, failing,
                  OfAnEarlierLife("job-5", JobState::kStopping)},
                 Instant(Millis(5)));
  const auto job = [&](const char* id) { return engine.jobs().at(id); };
  EXPECT_EQ(job("job-1").state, JobState::kSucceeded);
  EXPECT_EQ(job("job-2").state, JobState::kFailed);
  EXPECT_EQ(job("job-2").reason,
            "the orchestrator was stopped or died while the job ran (3 of 8 steps were done); "
            "titanctl weights ls job-2 shows whether its newest version was kept; submit it again: "
            "this version does not resume jobs");
  EXPECT_EQ(job("job-3").state, JobState::kCancelled);
  EXPECT_EQ(job("job-3").reason, "not needed");
  EXPECT_EQ(job("job-4").state, JobState::kFailed);
  EXPECT_EQ(job("job-4").reason, "differ in step 2");
  EXPECT_EQ(job("job-5").state, JobState::kFailed);
  EXPECT_NE(job("job-5").reason.find("every step was done"), std::string::npos);
  const Actions actions = engine.TakeActions();
  ASSERT_EQ(actions.facts.size(), 4u);
  std::vector<std::string> ended;
  for (const Action& action : actions.actions) {
    const auto* end = std::get_if<EndRun>(&action.body);
    if (end == nullptr) continue;
    ended.push_back(end->run_id);  // its slots at the store are free again
    EXPECT_EQ(action.after_facts, 4u);
    EXPECT_TRUE(end->trainer.worker_id.empty());
  }
  EXPECT_EQ(ended, (std::vector<std::string>{"run-job-2", "run-job-3", "run-job-4", "run-job-5"}));
}

// The order in which jobs became STARTING.
std::vector<std::string> OrderOfStarts(const World& world) {
  std::vector<std::string> order;
  for (const Fact& fact : world.facts) {
    const auto* changed = std::get_if<StateChanged>(&fact.body);
    if (changed != nullptr && changed->state == JobState::kStarting) order.push_back(fact.job_id);
  }
  return order;
}

TEST(RunEngineTest, JobsThatHadNotBegunRunAgainInTheirOrderAndToTheSameBits) {
  World quiet{WorldOptions{}};
  quiet.Submit("job-1", MakeSpec());
  quiet.Run();
  World world{WorldOptions{}};
  world.Restore({OfAnEarlierLife("job-9", JobState::kStarting),
                 OfAnEarlierLife("job-10", JobState::kQueued),
                 OfAnEarlierLife("job-11", JobState::kQueued)});
  world.Submit("job-12", MakeSpec());
  // A new run: the old one may have its first version at the store.
  EXPECT_EQ(world.Job("job-9").run_id, "next-job-9");
  EXPECT_EQ(world.Job("job-10").run_id, "run-job-10");
  world.RunFor(1000);
  for (const char* id : {"job-9", "job-10", "job-11", "job-12"}) {
    EXPECT_EQ(world.Job(id).state, JobState::kQueued) << id;  // none passes another
  }
  world.Prepare("job-11");
  world.Prepare("job-10");
  world.RunFor(1000);
  EXPECT_EQ(world.Job("job-10").state, JobState::kQueued);
  world.Prepare("job-9");
  world.Run();
  EXPECT_EQ(OrderOfStarts(world),
            (std::vector<std::string>{"job-9", "job-10", "job-11", "job-12"}));
  for (const char* id : {"job-9", "job-10", "job-11", "job-12"}) {
    ASSERT_EQ(world.Job(id).state, JobState::kSucceeded) << world.Job(id).reason;
    EXPECT_EQ(world.Job(id).last_step->weights_digest,
              quiet.Job("job-1").last_step->weights_digest);
    world.CheckEveryGroupEndedOnce(id);
  }
  // What is compared between runs does not show the restart.
  const auto form = [](const World& of, const std::string& id) {
    std::vector<Fact> facts;
    for (const Fact& fact : of.facts) {
      if (fact.job_id == id) facts.push_back(fact);
    }
    return ResultLines(facts);
  };
  EXPECT_EQ(form(world, "job-9"), form(quiet, "job-1"));
}

// Run ids by EndRun, those that go to a trainer with its name.
std::vector<std::string> EndedRuns(const Actions& actions) {
  std::vector<std::string> ended;
  for (const Action& action : actions.actions) {
    const auto* end = std::get_if<EndRun>(&action.body);
    if (end == nullptr) continue;
    ended.push_back(end->run_id +
                    (end->trainer.worker_id.empty() ? "" : " at " + end->trainer.worker_id));
  }
  return ended;
}

TEST(RunEngineTest, RunsOfEarlierLivesEndAtTheStoreAndAtTheFirstTrainer) {
  RestoredJob starting = OfAnEarlierLife("job-2", JobState::kStarting);
  starting.past_run_ids = {"older"};
  RestoredJob over = OfAnEarlierLife("job-1", JobState::kSucceeded);
  over.past_run_ids = {"oldest"};
  RunEngine engine;
  engine.Restore({over, starting}, Instant(Millis(5)));
  EXPECT_EQ(EndedRuns(engine.TakeActions()),
            (std::vector<std::string>{"oldest", "older", "run-job-2"}));
  // The trainer may have begun one of them after the store was asked to end it.
  WorkerReady ready;
  ready.name = {"trainer", "1"};
  ready.role = WorkerRole::kTrainer;
  engine.Handle(ready, Instant(Millis(6)));
  EXPECT_EQ(
      EndedRuns(engine.TakeActions()),
      (std::vector<std::string>{"oldest at trainer", "older at trainer", "run-job-2 at trainer"}));
  engine.Handle(ready, Instant(Millis(7)));
  EXPECT_TRUE(EndedRuns(engine.TakeActions()).empty());
}

TEST(RunEngineTest, AJobThatWaitsSaysForWhat) {
  WorldOptions options;
  options.reward_service = false;
  options.generators = false;
  World world{options};
  world.Submit("job-1", MakeSpec());
  world.RunFor(1000);
  EXPECT_EQ(world.Job("job-1").state, JobState::kQueued);
  EXPECT_EQ(world.Job("job-1").reason,
            "waits: no generator, no reward service with the grader numeric_match");
  world.Join("generator-0", WorkerRole::kGenerator);
  EXPECT_EQ(world.Job("job-1").reason, "waits: no reward service with the grader numeric_match");
  world.Join("reward", WorkerRole::kReward);
  EXPECT_EQ(world.Job("job-1").reason, "");
  world.RunToStep("job-1", 1);
  world.Kill("reward");
  world.RunFor(200);
  EXPECT_EQ(world.Job("job-1").state, JobState::kRunning);
  EXPECT_EQ(world.Job("job-1").reason,
            "waits: no reward service with the grader numeric_match (reward was lost: killed)");
  world.Join("reward", WorkerRole::kReward);
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kSucceeded);
  EXPECT_EQ(world.Job("job-1").reason, "");
  World later{WorldOptions{}};
  later.Restore({OfAnEarlierLife("job-1", JobState::kQueued)});
  EXPECT_NE(later.Job("job-1").reason.find("are read again after a restart"), std::string::npos);
  later.Prepare("job-1");
  EXPECT_EQ(later.Job("job-1").reason.find("restart"), std::string::npos);
}

// The numbers of a watcher's events are those of the facts that tell of them.
TEST(RunEngineTest, EveryReportIsAFactInItsOrder) {
  RunEngine engine;
  const auto check = [](const Actions& actions) {
    size_t fact = 0;
    for (const Action& action : actions.actions) {
      const auto is_report = [](const auto& body) {
        using Body = std::decay_t<decltype(body)>;
        return std::is_same_v<Body, ReportJob> || std::is_same_v<Body, ReportMessage>;
      };
      if (!std::visit(is_report, action.body)) continue;
      const auto told = [](const Fact& f) {
        return std::holds_alternative<StateChanged>(f.body) ||
               std::holds_alternative<MessageTold>(f.body);
      };
      while (fact < actions.facts.size() && !told(actions.facts[fact])) ++fact;
      ASSERT_LT(fact, actions.facts.size());
      EXPECT_EQ(std::holds_alternative<ReportMessage>(action.body),
                std::holds_alternative<MessageTold>(actions.facts[fact].body));
      ++fact;
    }
  };
  engine.Restore(
      {OfAnEarlierLife("job-1", JobState::kStarting), OfAnEarlierLife("job-2", JobState::kQueued)},
      Instant(Millis(5)));
  check(engine.TakeActions());
  engine.Handle(
      JobPrepared{
          "job-1", OkStatus(), std::make_shared<const Dataset>(testing::MakeDataset(40)), {}},
      Instant(Millis(6)));
  WorkerReady ready;
  ready.name = {"trainer", "1"};
  ready.role = WorkerRole::kTrainer;
  engine.Handle(ready, Instant(Millis(7)));
  check(engine.TakeActions());
}

TEST(RunEngineTest, ARestoredJobMayBeCancelledOrFailToPrepareAndLetsTheNextOneRun) {
  World world{WorldOptions{}};
  world.Restore({OfAnEarlierLife("job-1", JobState::kQueued),
                 OfAnEarlierLife("job-2", JobState::kQueued),
                 OfAnEarlierLife("job-3", JobState::kQueued)});
  world.Deliver(CancelJob{"job-1", "c", "not needed"});
  world.Prepare("job-1");  // too late
  world.Prepare("job-2", Unavailable("model.id: the weight store does not answer"));
  EXPECT_EQ(world.Job("job-2").state, JobState::kQueued);
  EXPECT_EQ(world.Job("job-2").reason, "waits: model.id: the weight store does not answer");
  world.Prepare("job-2", NotFound("data.path: 'x.jsonl' is not there"));
  world.Prepare("job-3");
  world.Prepare("job-3", NotFound("doubled"));
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kCancelled);
  EXPECT_EQ(world.Job("job-2").state, JobState::kFailed);
  EXPECT_NE(world.Job("job-2").reason.find("data.path: 'x.jsonl' is not there; mend it and submit"),
            std::string::npos)
      << world.Job("job-2").reason;
  EXPECT_EQ(world.Job("job-3").state, JobState::kSucceeded) << world.Job("job-3").reason;
  EXPECT_EQ(OrderOfStarts(world), (std::vector<std::string>{"job-3"}));
}

}  // namespace
}  // namespace titan::orchestrator
