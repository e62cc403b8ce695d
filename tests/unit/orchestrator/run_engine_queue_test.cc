// SPDX-License-Identifier: Apache-2.0
//
// Goal: jobs begin in their order, and only when somebody can work on them; one that nobody can
// serve ends at once. Method: the engine in a simulated world
// (tests/support/orchestrator_simulation.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "orchestrator/run_engine.h"
#include "tests/support/orchestrator_simulation.h"

namespace titan::orchestrator {
namespace {

using testing::MakeSpec;
using testing::World;
using testing::WorldOptions;

TEST(RunEngineTest, JobsRunOneAfterTheOther) {
  World world{WorldOptions{}};
  world.Submit("job-1", MakeSpec());
  world.Submit("job-2", MakeSpec());
  world.RunToStep("job-1", 2);
  EXPECT_EQ(world.Job("job-2").state, JobState::kQueued);
  world.Deliver(CancelJob{"job-2", "c", "not needed"});
  EXPECT_EQ(world.Job("job-2").state, JobState::kCancelled);
  world.Submit("job-3", MakeSpec());
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kSucceeded);
  EXPECT_EQ(world.Job("job-3").state, JobState::kSucceeded);
  EXPECT_EQ(world.Job("job-1").last_step->weights_digest,
            world.Job("job-3").last_step->weights_digest);
}

TEST(RunEngineTest, AVersionThatEveryGeneratorRefusesEndsTheJobAtOnce) {
  WorldOptions options;
  options.refusing_generators = options.num_generators = 2;
  World world{options};
  world.RunFor(1000);  // both are there
  world.Submit("job-1", MakeSpec());
  world.RunFor(5000);
  EXPECT_EQ(world.Job("job-1").state, JobState::kFailed);
  const std::string& reason = world.Job("job-1").reason;
  EXPECT_TRUE(reason.starts_with("no generator can serve the model: generator-")) << reason;
  EXPECT_TRUE(reason.ends_with(" could not load version 0: its cache is too small")) << reason;
  world.CheckEveryGroupEndedOnce();
}

TEST(RunEngineTest, AVersionThatOneGeneratorRefusesIsServedByTheOther) {
  WorldOptions options;
  options.refusing_generators = 1;
  World world{options};
  world.RunFor(1000);
  world.Submit("job-1", MakeSpec());
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kSucceeded) << world.Job("job-1").reason;
  EXPECT_EQ(world.samples_by_worker.count("generator-0"), 0u);
  // Each of the 9 versions is asked for once, to train and to evaluate, and people hear of it once.
  EXPECT_GE(world.loads["generator-0"], 1u);
  EXPECT_LE(world.loads["generator-0"], 18u);
  EXPECT_EQ(std::count_if(world.messages.begin(), world.messages.end(),
                          [](const std::string& text) {
                            return text.find("its cache is too small") != std::string::npos;
                          }),
            1);
}

TEST(RunEngineTest, OneThatRefusesTakesNoShareOfTheWork) {
  WorldOptions options;
  options.num_generators = 4;
  options.refusing_generators = 3;
  options.max_running_sequences = 64;
  options.drop_rollouts = true;
  World world{options};
  world.RunFor(1000);
  JobSpec spec = MakeSpec();
  spec.evaluation.every_steps = 0;
  spec.data.held_out = 0;
  world.Submit("job-1", spec);
  world.RunFor(1000);
  // The 4 groups of both steps that may be open at max_age 1 are with the one that serves.
  EXPECT_EQ(world.rollouts_started, 2u * 4);
}

TEST(RunEngineTest, TheJobWaitsForTheOneThatServesItWhenOnlyRefusersAreLeft) {
  for (const bool back : {true, false}) {
    WorldOptions options;
    options.refusing_generators = 1;
    World world{options};
    world.RunFor(1000);
    world.Submit("job-1", MakeSpec());
    world.RunToStep("job-1", 2);
    world.Kill("generator-1");
    world.RunFor(20'000);  // of the 30 s of deadlines.workers_ms
    EXPECT_EQ(world.Job("job-1").state, JobState::kRunning) << world.Job("job-1").reason;
    EXPECT_EQ(world.Job("job-1").reason.find("waits: no generator that can serve the model "
                                             "(generator-0 could not load version "),
              0u)
        << world.Job("job-1").reason;
    if (back) world.Join("generator-1", WorkerRole::kGenerator);
    world.Run();
    EXPECT_EQ(world.Job("job-1").state, back ? JobState::kSucceeded : JobState::kFailed)
        << world.Job("job-1").reason;
    if (back) continue;
    EXPECT_NE(world.Job("job-1").reason.find("no generator that can serve the model (generator-0"),
              std::string::npos)
        << world.Job("job-1").reason;
    EXPECT_NE(world.Job("job-1").reason.find("for deadlines.workers_ms (30000 ms)"),
              std::string::npos)
        << world.Job("job-1").reason;
  }
}

TEST(RunEngineTest, TheQueueWaitsForWorkersThatAreGone) {
  const struct {
    const char* worker;
    WorkerRole role;
    const char* says;
  } cases[] = {
      {"trainer", WorkerRole::kTrainer, "waits: no trainer (trainer was lost: killed)"},
      {"weightstore", WorkerRole::kWeightStore,
       "waits: no weight store (weightstore was lost: killed)"},
      {"generator-0", WorkerRole::kGenerator, "waits: no generator (generator-0 was lost: killed)"},
      {"reward", WorkerRole::kReward,
       "waits: no reward service with the grader numeric_match (reward was lost: killed)"},
  };
  for (const auto& c : cases) {
    WorldOptions options;
    options.num_generators = 1;
    World world{options};
    JobSpec spec = MakeSpec();
    spec.deadlines.workers_ms = 1000;
    world.Submit("job-1", spec);
    for (const char* job : {"job-2", "job-3", "job-4"}) world.Submit(job, spec);
    world.RunToStep("job-1", 2);
    world.Kill(c.worker);
    world.RunFor(3600 * 1000);
    EXPECT_EQ(world.Job("job-1").state, JobState::kFailed) << c.worker;
    EXPECT_EQ(world.Job("job-2").state, JobState::kQueued) << c.worker;
    EXPECT_EQ(world.Job("job-2").reason, c.says);
    EXPECT_EQ(world.Job("job-3").state, JobState::kQueued) << c.worker;
    // Its watchers are told, once.
    EXPECT_EQ(std::count(world.messages.begin(), world.messages.end(),
                         std::string(c.says) + "; titanctl status shows who runs and how to start "
                                               "what is missing"),
              1)
        << c.worker;
    world.Deliver(CancelJob{"job-3", "c", "not needed"});
    EXPECT_EQ(world.Job("job-3").state, JobState::kCancelled);
    world.Join(c.worker, c.role);
    world.Run();
    EXPECT_EQ(world.Job("job-2").state, JobState::kSucceeded) << world.Job("job-2").reason;
    EXPECT_EQ(world.Job("job-4").state, JobState::kSucceeded) << world.Job("job-4").reason;
    EXPECT_LE(world.Job("job-2").ended_unix_ms, world.Job("job-4").running_unix_ms);
  }
}

TEST(RunEngineTest, AJobWhoseGraderNobodyHasHoldsTheQueueUpForItsDeadline) {
  World world{WorldOptions{}};
  JobSpec other = MakeSpec();
  other.reward.grader = "judge";
  world.Submit("job-1", other);
  world.Submit("job-2", MakeSpec());
  world.RunFor(other.deadlines.workers_ms / 2);
  // The time that nobody could work does not count.
  world.Kill("trainer");
  world.RunFor(2 * other.deadlines.workers_ms);
  world.Join("trainer", WorkerRole::kTrainer);
  world.RunFor(other.deadlines.workers_ms / 2);
  EXPECT_EQ(world.Job("job-1").state, JobState::kQueued);
  world.Run();
  EXPECT_EQ(world.Job("job-1").state, JobState::kFailed);
  EXPECT_NE(world.Job("job-1").reason.find("grader judge (there is: numeric_match) within "
                                           "deadlines.workers_ms (30000 ms); titanctl status"),
            std::string::npos)
      << world.Job("job-1").reason;
  EXPECT_EQ(world.Job("job-2").state, JobState::kSucceeded);
}

TEST(RunEngineTest, TheTimeThatAGraderIsWaitedForIsOfOneJob) {
  World world{WorldOptions{}};
  JobSpec other = MakeSpec();
  other.reward.grader = "judge";
  world.Submit("job-1", other);
  world.Submit("job-2", other);
  world.RunFor(other.deadlines.workers_ms - 1000);
  world.Deliver(CancelJob{"job-1", "c", "not needed"});
  world.RunFor(other.deadlines.workers_ms - 1000);
  EXPECT_EQ(world.Job("job-2").state, JobState::kQueued) << world.Job("job-2").reason;
  world.Run();
  EXPECT_EQ(world.Job("job-2").state, JobState::kFailed);
}

}  // namespace
}  // namespace titan::orchestrator
