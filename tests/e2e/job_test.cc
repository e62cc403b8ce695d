// SPDX-License-Identifier: Apache-2.0
// Goal: the claims about whole jobs, on real daemons and with real signals: the same weights at
// every step whatever the fleet, the limits, the threads, the instruction set and the delays; a
// killed generator changes no bit; on-policy runs compare every trained token; weights are mapped,
// not copied.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "core/kernels/isa.h"
#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

using config::v1::ClusterConfig;
using orchestrator::v1::StepReport;

constexpr uint32_t kSteps = 5;

// The run that all others are held against.
const JobRun& Baseline() {
  static const JobRun run = [] {
    TestFolder folder("baseline");
    const auto spec = SmallJob(kSteps);
    JobRun baseline = RunJob(SmallCluster(folder.path()), spec);
    ExpectSound(baseline, spec);
    return baseline;
  }();
  return run;
}

void ExpectSameBits(const JobRun& run, bool other_batches) {
  ExpectSound(run, SmallJob(kSteps));
  EXPECT_EQ(run.digests(), Baseline().digests());
  if (other_batches) {
    EXPECT_NE(run.batch_fingerprints(), Baseline().batch_fingerprints());
  }
}

TEST(JobTest, BothGeneratorsWorkAndBatchesAreLarge) {
  const JobRun& run = Baseline();
  EXPECT_EQ(run.token_shares().size(), 2u);
  uint32_t running = 0;
  for (const StepReport& step : run.steps)
    running = std::max(running, step.sequences_running_max());
  EXPECT_GE(running, 8u);
  for (const StepReport& step : run.steps) EXPECT_GE(step.samples_per_pack_min(), 4u);
}

TEST(JobTest, ASampleOfMoreThan600TokensIsTrained) {
  uint32_t longest = 0;
  for (const StepReport& step : Baseline().steps)
    longest = std::max(longest, step.sample_tokens_max());
  EXPECT_GT(longest, 600u);
}

TEST(JobTest, GenerationOfTheNextStepStartsBeforeItsPredecessorIsCommitted) {
  const JobRun& run = Baseline();
  int early = 0;
  for (uint64_t t = 0; t + 1 < run.steps.size(); ++t) {
    ASSERT_TRUE(run.first_rollout_ms.contains(t + 1) && run.step_done_ms.contains(t));
    const bool before = run.first_rollout_ms.at(t + 1) < run.step_done_ms.at(t);
    EXPECT_EQ(before, run.steps[t + 1].generated_before_previous_commit());
    early += before ? 1 : 0;
  }
  EXPECT_GE(early, static_cast<int>(0.8 * static_cast<double>(run.steps.size() - 1)));
}

TEST(JobTest, EvaluatesHeldOutQuestionsAtPinnedVersions) {
  std::set<uint64_t> versions;
  for (const auto& evaluation : Baseline().evaluations) {
    if (!evaluation.skipped_reason().empty()) continue;
    EXPECT_EQ(evaluation.questions(), 8u);
    versions.insert(evaluation.version());
  }
  EXPECT_TRUE(versions.contains(0));
  EXPECT_TRUE(versions.contains(kSteps));
}

// One generator, other limits, threads and instruction set.
ClusterConfig OtherCluster(const std::string& folder) {
  ClusterConfig config = SmallCluster(folder);
  config.set_num_generators(1);
  config.mutable_generator()->set_max_running_sequences(9);
  config.mutable_generator()->set_max_batch_tokens(33);
  config.mutable_generator()->mutable_kernels()->set_threads(2);
  config.mutable_generator()->mutable_kernels()->set_isa("avx2");
  config.mutable_trainer()->mutable_kernels()->set_threads(2);
  config.mutable_trainer()->mutable_kernels()->set_isa("avx2");
  config.mutable_trainer()->set_max_pack_tokens(3072);
  return config;
}

TEST(JobTest, TheSameJobAgainGivesTheSameBits) {
  TestFolder folder("again");
  ExpectSameBits(RunJob(SmallCluster(folder.path()), SmallJob(kSteps)), /*other_batches=*/false);
}

TEST(JobTest, OneGeneratorOtherLimitsThreadsAndInstructionSetGiveTheSameBits) {
  TestFolder folder("variant");
  const ClusterConfig config = OtherCluster(folder.path());
  ExpectSameBits(RunJob(config, SmallJob(kSteps)), /*other_batches=*/true);
}

TEST(JobTest, RandomDelaysInEveryRpcGiveTheSameBits) {
  TestFolder folder("delays");
  const ClusterConfig config = WithDelays(SmallCluster(folder.path()), 40);
  ExpectSameBits(RunJob(config, SmallJob(kSteps)), /*other_batches=*/true);
}

TEST(JobTest, AGeneratorThatPullsItsVersionsGivesTheSameBits) {
  TestFolder folder("remote");
  ClusterConfig config = SmallCluster(folder.path());
  config.set_num_generators(1);  // which maps
  config.mutable_weightstore()->set_data_plane_address("127.0.0.1:0");
  std::unique_ptr<RemoteGenerator> remote;
  std::map<std::string, double> metrics;
  const JobRun run = RunJob(
      config, SmallJob(kSteps),
      [&](const StepReport&, const cluster::Cluster&) {
        for (const char* name :
             {"titan_generator_pulled_bytes_total", "titan_generator_pull_memory_bytes",
              "titan_generator_pull_corrupt_total", "titan_generator_pull_seconds_count"}) {
          metrics[name] = remote->Metric(name);
        }
      },
      [&](const cluster::Cluster& cluster) {
        remote = std::make_unique<RemoteGenerator>(config, cluster, "elsewhere");
      });
  ExpectSameBits(run, /*other_batches=*/false);
  EXPECT_EQ(run.token_shares().size(), 2u);  // of which each made a fifth at least
  // Versions 0 to 4 at least, in memory of at most max_versions and the spare.
  const double slot_bytes = metrics["titan_generator_pulled_bytes_total"] /
                            (metrics["titan_generator_pull_seconds_count"] / 3);  // phases
  EXPECT_GE(metrics["titan_generator_pull_seconds_count"], 3 * kSteps);
  EXPECT_GT(slot_bytes, 1 << 20);
  EXPECT_GE(metrics["titan_generator_pull_memory_bytes"], slot_bytes);
  EXPECT_LE(metrics["titan_generator_pull_memory_bytes"],
            slot_bytes * (config.generator().max_versions() + 1));
  EXPECT_EQ(metrics["titan_generator_pull_corrupt_total"], 0);
}

TEST(JobTest, AGeneratorThatPullsByOneSidedReadsGivesTheSameBits) {
  TestFolder folder("one_sided");
  ClusterConfig config = SmallCluster(folder.path());
  config.set_num_generators(1);  // which maps
  config.mutable_weightstore()->set_data_plane_address("127.0.0.1:0");
  config.mutable_weightstore()->mutable_daemon()->mutable_debug()->set_shm_test_lane(true);
  std::unique_ptr<RemoteGenerator> remote;
  std::map<std::string, double> metrics;
  const JobRun run = RunJob(
      config, SmallJob(kSteps),
      [&](const StepReport&, const cluster::Cluster&) {
        for (const char* name :
             {"titan_generator_lane{lane=\"shm-test\"}", "titan_generator_pulled_bytes_total",
              "titan_generator_pull_corrupt_total"}) {
          metrics[name] = remote->Metric(name);
        }
      },
      [&](const cluster::Cluster& cluster) {
        auto elsewhere = config;
        elsewhere.mutable_generator()->set_require_rdma(true);
        elsewhere.mutable_generator()->mutable_daemon()->mutable_debug()->set_shm_test_lane(true);
        remote = std::make_unique<RemoteGenerator>(elsewhere, cluster, "elsewhere");
      });
  ExpectSameBits(run, /*other_batches=*/false);
  EXPECT_EQ(run.token_shares().size(), 2u);
  EXPECT_EQ(metrics["titan_generator_lane{lane=\"shm-test\"}"], 1);
  EXPECT_GT(metrics["titan_generator_pulled_bytes_total"], 0);
  EXPECT_EQ(metrics["titan_generator_pull_corrupt_total"], 0);
}

config::v1::JobSpec DeepJob(uint32_t steps) {
  auto spec = SmallJob(steps);
  spec.mutable_model()->set_path(DeepModelFolder());
  return spec;
}

TEST(JobTest, AKilledGeneratorIsReplacedAndChangesNoBit) {
  constexpr uint32_t kLong = 8;
  TestFolder quiet_folder("quiet");
  const JobRun quiet = RunJob(SmallCluster(quiet_folder.path()), DeepJob(kLong));
  ExpectSound(quiet, DeepJob(kLong));
  TestFolder folder("kill");
  std::set<pid_t> killed;
  const JobRun run = RunJob(SmallCluster(folder.path()), DeepJob(kLong),
                            [&](const StepReport& step, const cluster::Cluster& cluster) {
                              if (step.step() != 1 && step.step() != 3) return;
                              const std::string name =
                                  step.step() == 1 ? "generator-0" : "generator-1";
                              for (const auto& process : cluster.processes()) {
                                if (process.spec.name != name) continue;
                                killed.insert(process.pid);
                                kill(process.pid, SIGKILL);
                              }
                            });
  EXPECT_EQ(run.job.state(), orchestrator::v1::JOB_STATE_SUCCEEDED) << run.job.reason();
  EXPECT_EQ(run.digests(), quiet.digests());
  EXPECT_NE(run.batch_fingerprints(), quiet.batch_fingerprints());
  EXPECT_EQ(killed.size(), 2u);
  // Both replacements joined while the job ran: they made tokens of later steps.
  std::set<std::string> late;
  for (const StepReport& step : run.steps) {
    if (step.step() < 6) continue;
    for (const auto& share : step.generator_shares()) late.insert(share.worker_id());
  }
  EXPECT_EQ(late.size(), 2u);
  for (const auto& process : run.processes) {
    if (process.spec.role != "generator") continue;
    EXPECT_GE(process.restarts, 1u) << process.spec.name;
    EXPECT_FALSE(killed.contains(process.pid));
  }
}

// It joins once the first job runs; the next one is refused before it starts.
TEST(JobTest, AGeneratorWhoseCacheDoesNotFitSaysSoAndTheJobGoesOn) {
  constexpr uint32_t kLong = 8;
  TestFolder folder("huge_cache");
  ClusterConfig config = SmallCluster(folder.path());
  config.set_num_generators(1);
  config.mutable_weightstore()->set_data_plane_address("127.0.0.1:0");
  std::unique_ptr<RemoteGenerator> huge;
  Status refused;
  const JobRun run = RunJob(
      config, DeepJob(kLong),
      [&](const StepReport& step, const cluster::Cluster& cluster) {
        if (step.step() != 0) return;
        ClusterConfig elsewhere = config;
        elsewhere.mutable_generator()->set_kv_cache_bytes(uint64_t{1} << 44);
        huge = std::make_unique<RemoteGenerator>(elsewhere, cluster, "huge");
      },
      {}, [&](cluster::JobClient& client) { refused = client.Submit(DeepJob(kLong)).status(); });
  ExpectSound(run, DeepJob(kLong));
  const auto said = std::find_if(run.messages.begin(), run.messages.end(), [](const auto& text) {
    return text.find("huge could not load version ") == 0;
  });
  ASSERT_NE(said, run.messages.end());
  EXPECT_NE(said->find("serving this model needs 16777"), std::string::npos) << *said;
  EXPECT_NE(said->find(" MiB are free; lower kv_cache_bytes"), std::string::npos) << *said;
  EXPECT_GE(huge->Metric("titan_generator_versions_held_count"), 0);  // it lives
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused;
  EXPECT_NE(MessageOf(refused).find("schedule.max_age: the job needs at least 16777"),
            std::string::npos)
      << refused;
  EXPECT_NE(MessageOf(refused).find("generators 16777"), std::string::npos) << refused;
  EXPECT_NE(MessageOf(refused).find("kv_cache_bytes of the generators"), std::string::npos)
      << refused;
}

// Five layers of two heads of 64: a page has 81920 bytes. 65536 is the least that the configuration
// takes, whatever the model.
TEST(JobTest, ACacheThatIsTooSmallForTheModelEndsTheJobWithTheLeastValue) {
  const struct {
    uint64_t bytes;
    std::string says;
  } cases[] = {
      {65536,
       "kv_cache_bytes of the generator's config is 65536, and a cache page of this model, 16 "
       "tokens of one sequence, has 81920 bytes; set it to at least 81920"},
      {81920,
       " cache pages of 81920 bytes, and kv_cache_bytes (81920) holds 1; set it to at least "},
  };
  for (const auto& c : cases) {
    TestFolder folder("small_cache");
    ClusterConfig config = SmallCluster(folder.path());
    config.mutable_generator()->set_kv_cache_bytes(c.bytes);
    const JobRun run = RunJob(config, DeepJob(2));
    EXPECT_EQ(run.job.state(), orchestrator::v1::JOB_STATE_FAILED);
    EXPECT_NE(run.job.reason().find(c.says), std::string::npos) << run.job.reason();
    EXPECT_EQ(run.job.reason().starts_with("no generator can serve the model: generator-"),
              c.bytes == 65536)
        << run.job.reason();
  }
}

// Mode w16 with everything varied at once: two runs are enough to hold against each other.
TEST(JobTest, InW16OneGeneratorOtherLimitsInstructionSetAndAKillGiveTheSameBits) {
  auto spec = DeepJob(kSteps);
  spec.mutable_model()->set_mode("w16");
  spec.mutable_schedule()->set_steps(4);
  TestFolder quiet_folder("w16");
  const JobRun quiet = RunJob(SmallCluster(quiet_folder.path()), spec);
  ExpectSound(quiet, spec);

  TestFolder folder("w16-variant");
  ClusterConfig config = SmallCluster(folder.path());
  config.set_num_generators(1);
  config.mutable_generator()->set_max_running_sequences(9);
  config.mutable_generator()->set_max_batch_tokens(33);
  config.mutable_generator()->mutable_kernels()->set_isa("avx2");
  config.mutable_trainer()->mutable_kernels()->set_threads(2);
  config.mutable_trainer()->mutable_kernels()->set_isa("avx2");
  config.mutable_trainer()->set_max_pack_tokens(3072);
  bool killed = false;
  const JobRun run =
      RunJob(config, spec, [&](const StepReport& step, const cluster::Cluster& cluster) {
        if (step.step() != 1) return;
        for (const auto& process : cluster.processes()) {
          if (process.spec.role != "generator") continue;
          kill(process.pid, SIGKILL);
          killed = true;
        }
      });
  EXPECT_EQ(run.job.state(), orchestrator::v1::JOB_STATE_SUCCEEDED) << run.job.reason();
  EXPECT_EQ(run.digests(), quiet.digests());
  EXPECT_NE(run.batch_fingerprints(), quiet.batch_fingerprints());
  EXPECT_TRUE(killed);
  for (const StepReport& step : run.steps) {
    EXPECT_GT(step.parity().tokens_compared(), 0u) << "step " << step.step();
    EXPECT_EQ(step.parity().logprob_difference_max(), 0.0) << "step " << step.step();
  }
}

// Mode bf16: two runs, the second with other threads, batches and kernels (avx2 has no vdpbf16ps).
TEST(JobTest, InBf16OneGeneratorOtherLimitsThreadsAndInstructionSetGiveTheSameBits) {
  auto spec = SmallJob(3);
  spec.mutable_model()->set_mode("bf16");
  TestFolder folder("bf16"), variant_folder("bf16-variant");
  const JobRun run = RunJob(SmallCluster(folder.path()), spec);
  ExpectSound(run, spec);

  const ClusterConfig config = OtherCluster(variant_folder.path());
  const JobRun variant = RunJob(config, spec);
  ExpectSound(variant, spec);
  EXPECT_EQ(variant.digests(), run.digests());
  EXPECT_NE(variant.batch_fingerprints(), run.batch_fingerprints());
  // A run of mode f32 would agree with itself too: already the first update differs from its bits.
  EXPECT_NE(run.digests().at(0), Baseline().digests().at(0));
}

TEST(JobTest, AKilledRewardServiceIsReplacedAndChangesNoBit) {
  TestFolder folder("kill-reward");
  const JobRun run = RunJob(SmallCluster(folder.path()), SmallJob(kSteps),
                            [&](const StepReport& step, const cluster::Cluster& cluster) {
                              if (step.step() != 0) return;
                              for (const auto& process : cluster.processes()) {
                                if (process.spec.role == "reward") kill(process.pid, SIGKILL);
                              }
                            });
  EXPECT_EQ(run.job.state(), orchestrator::v1::JOB_STATE_SUCCEEDED) << run.job.reason();
  EXPECT_EQ(run.digests(), Baseline().digests());
}

TEST(JobTest, TheLossOfTheTrainerEndsTheJobWithAReason) {
  TestFolder folder("kill-trainer");
  const JobRun run = RunJob(SmallCluster(folder.path()), DeepJob(12),
                            [&](const StepReport& step, const cluster::Cluster& cluster) {
                              if (step.step() != 1) return;
                              for (const auto& process : cluster.processes()) {
                                if (process.spec.role == "trainer") kill(process.pid, SIGKILL);
                              }
                            });
  EXPECT_EQ(run.job.state(), orchestrator::v1::JOB_STATE_FAILED);
  EXPECT_NE(run.job.reason().find("trainer"), std::string::npos) << run.job.reason();
}

TEST(JobTest, OnPolicyRunComparesEveryTrainedToken) {
  TestFolder folder("on-policy");
  auto spec = SmallJob(4);
  spec.mutable_schedule()->set_max_age(0);
  const JobRun run = RunJob(SmallCluster(folder.path()), spec);
  ExpectSound(run, spec);
  uint64_t trained = 0;
  for (const StepReport& step : run.steps) {
    EXPECT_EQ(step.parity().tokens_compared(), step.tokens_trained());
    if (step.groups_trained() > 0) {
      EXPECT_EQ(step.ratio_max(), 1.0);
    }
    trained += step.tokens_trained();
  }
  EXPECT_EQ(run.job.parity().tokens_compared(), trained);
}

struct ProcessMemory {
  int64_t anonymous_kib = 0;
  bool slot_mapped = false;
  bool slot_writable = false;
};

ProcessMemory ReadMemory(pid_t pid) {
  ProcessMemory memory;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) memory.anonymous_kib = std::stoll(line.substr(8));
  }
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos || line.find("slot") == std::string::npos)
      continue;
    std::istringstream words(line);
    std::string range, mode;
    words >> range >> mode;
    const auto dash = range.find('-');
    const auto bytes = std::stoull(range.substr(dash + 1), nullptr, 16) -
                       std::stoull(range.substr(0, dash), nullptr, 16);
    if (bytes < 1 << 20) continue;  // a header page
    memory.slot_mapped = true;
    memory.slot_writable |= mode[1] == 'w';
  }
  return memory;
}

TEST(JobTest, GeneratorsMapTheSlotReadOnlyAndDoNotCopyIt) {
  TestFolder folder("memory");
  std::map<std::string, std::map<uint64_t, ProcessMemory>> seen;
  std::set<pid_t> pids;
  std::set<std::string> programs;
  const JobRun run =
      RunJob(SmallCluster(folder.path()), DeepJob(6),
             [&](const StepReport& step, const cluster::Cluster& cluster) {
               for (const auto& process : cluster.processes()) {
                 pids.insert(process.pid);
                 programs.insert(process.spec.exe);
                 if (process.spec.role == "generator") {
                   // Between two versions it may hold none for a moment.
                   ProcessMemory& memory = seen[process.spec.name][step.version()];
                   for (int i = 0; i < 300 && step.version() <= 3 && !memory.slot_mapped; ++i) {
                     memory = ReadMemory(process.pid);
                     std::this_thread::sleep_for(std::chrono::milliseconds(10));
                   }
                 }
               }
             });
  ExpectSound(run, DeepJob(6));
  EXPECT_EQ(pids.size(), 6u);  // store, orchestrator, trainer, reward service, two generators
  EXPECT_EQ(programs.size(), 5u);
  ASSERT_EQ(seen.size(), 2u);
  for (auto& [name, by_version] : seen) {
    for (const auto& [version, memory] : by_version) {
      if (version > 3) continue;  // the end of the job releases the slots
      EXPECT_TRUE(memory.slot_mapped) << name << " at version " << version;
      EXPECT_FALSE(memory.slot_writable) << name << " at version " << version;
    }
    const int64_t growth = by_version[3].anonymous_kib - by_version[1].anonymous_kib;
    EXPECT_LT(growth, kDeepModelKib / 10) << name;
  }
}

}  // namespace
}  // namespace titan::e2e
