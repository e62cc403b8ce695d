// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/small_job.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "clients/cluster/cluster_config.h"
#include "core/base/check.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/health.h"
#include "services/rpc/config.h"
#include "tests/support/small_model.h"

namespace titan::e2e {

namespace fs = std::filesystem;
using orchestrator::v1::StepReport;

TestFolder::TestFolder(const std::string& name)
    : path_(
          (fs::path(TITAN_BINARY_DIR) / "e2e" / (name + "-" + std::to_string(getpid()))).string()) {
  fs::remove_all(path_);
  fs::create_directories(path_);
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  if (!::testing::Test::HasFailure()) fs::remove_all(path_, ignored);
}

namespace {

void MakeModel(const std::string& folder, int32_t num_layers) {
  test::SmallModelOptions options;
  options.num_layers = num_layers;
  const Status status = test::MakeSmallModel(folder, 17, options);
  EXPECT_TRUE(status.ok()) << status;
  TITAN_CHECK(status.ok());
}

}  // namespace

const std::string& SmallModelFolder() {
  static const TestFolder folder("model");
  static const bool made = (MakeModel(folder.path(), 2), true);
  TITAN_CHECK(made);
  return folder.path();
}

const std::string& DeepModelFolder() {
  static const TestFolder folder("deep-model");
  static const bool made = (MakeModel(folder.path(), 5), true);
  TITAN_CHECK(made);
  return folder.path();
}

const std::string& SmallDataFile() {
  static const TestFolder folder("data");
  static const std::string file = folder.path() + "/data.jsonl";
  static const bool made = [] {
    std::ofstream out(file);
    for (int i = 0; i < 48; ++i) {
      std::string question =
          "What is " + std::to_string(i) + " + " + std::to_string(3 * i % 11) + "?";
      // Every sixth row is over 600 tokens: it crosses the 512-key segment of attention.
      for (int k = 0; k < (i % 6 == 5 ? 92 : i % 7); ++k)
        question += " Think " + std::to_string(k % 10) + ".";
      char id[16];
      std::snprintf(id, sizeof(id), "row-%03d", i);
      out << "{\"id\": \"" << id << "\", \"prompt\": [{\"role\": \"user\", \"content\": \""
          << question << "\"}], \"answer\": \"" << i % 10 << "\"}\n";
    }
    return out.good();
  }();
  TITAN_CHECK(made);
  return file;
}

config::v1::JobSpec SmallJob(uint32_t steps) {
  config::v1::JobSpec spec;
  spec.set_name("small");
  spec.set_seed(3);
  spec.mutable_model()->set_path(SmallModelFolder());
  spec.mutable_model()->set_max_sequence_tokens(2000);
  spec.mutable_data()->set_path(SmallDataFile());
  spec.mutable_data()->set_held_out(8);
  spec.mutable_schedule()->set_max_age(1);
  spec.mutable_schedule()->set_steps(steps);
  spec.mutable_schedule()->set_groups_per_step(4);
  spec.mutable_schedule()->set_on_untrainable("drop");
  spec.mutable_rollout()->set_samples_per_group(4);
  spec.mutable_rollout()->set_temperature(1.0f);
  spec.mutable_rollout()->set_max_new_tokens(12);
  spec.mutable_reward()->set_grader("regex_match");
  spec.mutable_reward()->set_grader_parameters_json(
      R"({"pattern": "[0-4][^0-9]*$", "compare": "none"})");
  spec.mutable_training()->set_learning_rate(1e-3);
  spec.mutable_evaluation()->set_every_steps(2);
  spec.mutable_parity()->set_share(0.5);
  return spec;
}

config::v1::ClusterConfig SmallCluster(const std::string& data_folder) {
  config::v1::ClusterConfig config;
  cluster::FillClusterDefaults(&config);
  config.set_data_folder(data_folder);
  config.set_num_generators(2);
  config.mutable_generator()->mutable_kernels()->set_threads(1);
  config.mutable_generator()->set_kv_cache_bytes(uint64_t{64} << 20);
  config.mutable_trainer()->mutable_kernels()->set_threads(1);
  config.mutable_trainer()->set_max_pack_tokens(4096);
  return config;
}

config::v1::ClusterConfig WithDelays(config::v1::ClusterConfig config, uint32_t max_ms) {
  uint64_t seed = 0;
  for (config::v1::DaemonConfig* daemon :
       {config.mutable_orchestrator()->mutable_daemon(),
        config.mutable_generator()->mutable_daemon(), config.mutable_trainer()->mutable_daemon(),
        config.mutable_weightstore()->mutable_daemon(),
        config.mutable_reward()->mutable_daemon()}) {
    daemon->mutable_debug()->set_rpc_delay_max_ms(max_ms);
    daemon->mutable_debug()->set_rpc_delay_seed(++seed);
  }
  return config;
}

std::vector<std::string> JobRun::digests() const {
  std::vector<std::string> all;
  for (const StepReport& step : steps) all.push_back(step.weights_digest());
  return all;
}

std::vector<uint64_t> JobRun::batch_fingerprints() const {
  std::vector<uint64_t> all;
  for (const StepReport& step : steps) {
    for (const auto& share : step.generator_shares()) all.push_back(share.batch_fingerprint());
  }
  return all;
}

std::vector<double> JobRun::token_shares() const {
  std::map<std::string, double> tokens;
  double total = 0;
  for (const StepReport& step : steps) {
    for (const auto& share : step.generator_shares()) {
      tokens[share.worker_id()] += static_cast<double>(share.tokens());
      total += static_cast<double>(share.tokens());
    }
  }
  std::vector<double> shares;
  for (const auto& [worker, n] : tokens) shares.push_back(n / total);
  return shares;
}

namespace {

// What titan-journal --times prints: "<unix ms> <fact> <key>=<value> ...", ids in hex.
void ReadJournal(const std::string& data_folder, JobRun* run) {
  const std::string command = std::string(TITAN_BINARY_DIR) + "/bin/titan-journal --data_folder " +
                              data_folder + "/orchestrator --job " + run->job.job_id() + " --times";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, n);
  ASSERT_EQ(pclose(pipe), 0) << command;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t ms = 0;
    std::string fact, field;
    words >> ms >> fact >> field;
    if (fact == "rollout_started") {
      const uint64_t group = std::stoull(field.substr(field.find('=') + 1), nullptr, 16);
      if (group >> 63 == 0) run->first_rollout_ms.emplace(group >> 24, ms);  // not an evaluation's
    } else if (fact == "step_done") {
      run->step_done_ms[std::stoull(field.substr(field.find('=') + 1), nullptr, 16)] = ms;
    }
  }
}

}  // namespace

JobRun RunJob(const config::v1::ClusterConfig& config, const config::v1::JobSpec& spec,
              StepHook hook, const StartHook& started, const EndHook& ended) {
  JobRun run;
  cluster::ClusterOptions options;
  options.config = config;
  options.bin_folder = std::string(TITAN_BINARY_DIR) + "/bin";
  auto cluster = cluster::Cluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return run;
  auto client = cluster::JobClient::Connect((*cluster)->orchestrator_address());
  EXPECT_TRUE(client.ok()) << client.status();
  if (!client.ok()) return run;
  if (started) started(**cluster);
  const auto submitted = (*client)->Submit(spec);
  EXPECT_TRUE(submitted.ok()) << submitted.status();
  if (!submitted.ok()) return run;
  const auto job = (*client)->Watch(submitted->job_id(), 0,
                                    [&](const orchestrator::v1::WatchJobResponse& event) {
                                      if (event.has_step_done()) {
                                        run.steps.push_back(event.step_done());
                                        if (hook) hook(event.step_done(), **cluster);
                                      }
                                      if (event.has_evaluation_done())
                                        run.evaluations.push_back(event.evaluation_done());
                                      if (!event.message().empty())
                                        run.messages.push_back(event.message());
                                    });
  EXPECT_TRUE(job.ok()) << job.status();
  if (job.ok()) run.job = *job;
  run.processes = (*cluster)->processes();
  if (ended) ended(**client);
  client->reset();  // an idle connection would hold the orchestrator's shutdown
  (*cluster)->Stop();
  ReadJournal(config.data_folder(), &run);
  return run;
}

RemoteGenerator::RemoteGenerator(const config::v1::ClusterConfig& config,
                                 const cluster::Cluster& cluster, const std::string& name)
    : name_(name), data_folder_(config.data_folder() + "/" + name) {
  const auto store = runtime::ReadEndpoint(config.data_folder() + "/weightstore", "weightstore");
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return;
  config::v1::GeneratorConfig own = config.generator();
  own.mutable_daemon()->set_worker_id(name);
  own.mutable_daemon()->set_data_folder(data_folder_);
  own.set_orchestrator_address(cluster.orchestrator_address());
  own.set_weightstore_address(store->address);
  const std::string file = data_folder_ + ".json", log = data_folder_ + ".log";
  std::ofstream(file) << rpc::ToJsonText(own);
  const std::string program = std::string(TITAN_BINARY_DIR) + "/bin/titan-generator";
  process_ = std::make_unique<testing::ChildProcess>(
      std::vector<std::string>{program, "--config", file}, log);
  auto client = cluster::JobClient::Connect(cluster.orchestrator_address());
  const auto registered = [&] {
    const auto workers = (*client)->ListWorkers();
    for (int w = 0; workers.ok() && w < workers->workers_size(); ++w) {
      if (workers->workers(w).worker().worker_id() == name) return true;
    }
    return false;
  };
  EXPECT_TRUE(client.ok() && testing::Eventually(registered, std::chrono::seconds(30)))
      << name << " does not register; see " << log;
}

double RemoteGenerator::Metric(const std::string& name) const {
  const auto endpoint = runtime::ReadEndpoint(data_folder_, name_);
  if (!endpoint.ok()) return -1;
  const auto answer =
      runtime::GetHealth(endpoint->health_address, "/metrics", std::chrono::seconds(5));
  EXPECT_TRUE(answer.ok()) << answer.status();
  double sum = 0;
  std::istringstream lines(answer.ok() ? answer->body : "");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + " ") && !line.starts_with(name + "{")) continue;
    sum += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

void ExpectSound(const JobRun& run, const config::v1::JobSpec& spec) {
  EXPECT_EQ(run.job.state(), orchestrator::v1::JOB_STATE_SUCCEEDED) << run.job.reason();
  ASSERT_EQ(run.steps.size(), spec.schedule().steps());
  const auto digests = run.digests();
  EXPECT_GE(std::set<std::string>(digests.begin(), digests.end()).size(), 3u);
  for (size_t t = 0; t < run.steps.size(); ++t) {
    const StepReport& step = run.steps[t];
    EXPECT_EQ(step.step(), t);
    EXPECT_EQ(step.age(), std::min<uint64_t>(t, spec.schedule().max_age()));
    EXPECT_GT(step.parity().tokens_compared(), 0u) << "step " << t;
    EXPECT_EQ(step.parity().tokens_differing(), 0u) << "step " << t;
    EXPECT_EQ(step.parity().logprob_difference_max(), 0.0) << "step " << t;
  }
  const auto shares = run.token_shares();
  for (const double share : shares) EXPECT_GT(share, shares.size() == 2 ? 0.2 : 0.0);
  EXPECT_EQ(run.job.parity().tokens_differing(), 0u);
}

}  // namespace titan::e2e
