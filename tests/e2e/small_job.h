// SPDX-License-Identifier: Apache-2.0
//
// Whole jobs on real daemons: a cluster of processes, a small model made by Philox, a job on it,
// and what came out. Test code.
#ifndef TITAN_TESTS_E2E_SMALL_JOB_H_
#define TITAN_TESTS_E2E_SMALL_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "clients/cluster/cluster.h"
#include "clients/cluster/job_client.h"
#include "core/base/status.h"
#include "tests/support/child_process.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/config/v1/job.pb.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::e2e {

// A folder of the test's own, removed when it passed.
class TestFolder {
 public:
  explicit TestFolder(const std::string& name);
  ~TestFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// hidden 512, intermediate 1024, vocabulary 2560; made once for all tests of the process.
const std::string& SmallModelFolder();
// The same with 5 layers (14 million parameters): jobs that last long enough to be disturbed.
const std::string& DeepModelFolder();
inline constexpr int64_t kDeepModelKib = 14 * 4 * 1000;

// 48 questions, eight of them over 600 tokens long; 8 are held out. Written once.
const std::string& SmallDataFile();

// 4 groups of 4 samples a step, S = 1, every second group compared.
config::v1::JobSpec SmallJob(uint32_t steps);

struct JobRun {
  orchestrator::v1::Job job;
  std::vector<orchestrator::v1::StepReport> steps;
  std::vector<orchestrator::v1::EvaluationReport> evaluations;
  std::vector<std::string> messages;             // events for people
  std::vector<cluster::ProcessState> processes;  // as of the job's end
  // Of the journal, in milliseconds: the first rollout of each step, and when each step was done.
  std::map<uint64_t, int64_t> first_rollout_ms;
  std::map<uint64_t, int64_t> step_done_ms;

  std::vector<std::string> digests() const;          // of each step
  std::vector<uint64_t> batch_fingerprints() const;  // all steps and generators
  // Share of the run's reply tokens by generator, ascending by name.
  std::vector<double> token_shares() const;
};

// What happens while the job runs; called on the watching thread.
using StepHook = std::function<void(const orchestrator::v1::StepReport&, const cluster::Cluster&)>;

// Two generators, one kernel thread each; folder and programs filled in.
config::v1::ClusterConfig SmallCluster(const std::string& data_folder);

// Every RPC of every daemon waits up to max_ms first, each daemon by its own seed.
config::v1::ClusterConfig WithDelays(config::v1::ClusterConfig config, uint32_t max_ms);

// Called once the cluster is up, before the job is submitted.
using StartHook = std::function<void(const cluster::Cluster&)>;

// Called when the job has ended, before the cluster stops.
using EndHook = std::function<void(cluster::JobClient&)>;

// Starts the cluster, runs the job to its end and stops the cluster. Fails the test when the
// cluster does not start or the job does not succeed.
JobRun RunJob(const config::v1::ClusterConfig& config, const config::v1::JobSpec& spec,
              StepHook hook = {}, const StartHook& started = {}, const EndHook& ended = {});

// A generator that is not the cluster's, as on another machine: it has no socket of the weight
// store and pulls every version from its data plane. Killed at the end.
class RemoteGenerator {
 public:
  // Returns once the orchestrator knows it.
  RemoteGenerator(const config::v1::ClusterConfig& config, const cluster::Cluster& cluster,
                  const std::string& name);
  RemoteGenerator(const RemoteGenerator&) = delete;
  RemoteGenerator& operator=(const RemoteGenerator&) = delete;

  const std::string& name() const { return name_; }
  // Of its metrics; all series of a name together.
  double Metric(const std::string& name) const;

 private:
  const std::string name_;
  const std::string data_folder_;
  std::unique_ptr<testing::ChildProcess> process_;
};

// What every run must show before it may be compared with another: at least 3 distinct digests,
// parity on every step, every job step reported once.
void ExpectSound(const JobRun& run, const config::v1::JobSpec& spec);

}  // namespace titan::e2e

#endif  // TITAN_TESTS_E2E_SMALL_JOB_H_
