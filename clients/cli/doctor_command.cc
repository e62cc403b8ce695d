// SPDX-License-Identifier: Apache-2.0
// doctor: gathers, examines, prints.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/doctor.h"
#include "clients/cli/store_client.h"
#include "clients/cluster/cluster_config.h"
#include "clients/cluster/job_file.h"
#include "core/formats/model_config.h"
#include "core/formats/model_source.h"
#include "core/runtime/endpoint.h"
#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;

StatusOr<formats::ModelConfig> ConfigOf(const std::string& data,
                                        const config::v1::ModelSpec& model) {
  if (model.id().empty()) {
    const auto source = formats::OpenModelSource(model.path());
    if (!source.ok()) return Annotate(source.status(), "model.path");
    return (*source)->config();
  }
  const auto store = StoreClient::Open(data);
  if (!store.ok()) {
    return Annotate(store.status(), "model.id: is looked up in the weight store, which must run");
  }
  const auto stored = (*store)->models().FindModel(model.id());
  if (!stored.ok()) return Annotate(stored.status(), "model.id");
  return formats::ParseHfConfig(stored->manifest->model_config_json, "model.id");
}

// Of the weight store's files in the cluster's data folder.
uint64_t BytesOfBlobs(const std::string& data) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(data + "/weightstore/blobs", error), end;
       !error && at != end; at.increment(error)) {
    std::error_code gone;  // deleted meanwhile
    const uint64_t size = at->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

StatusOr<JobNeeds> NeedsOf(const std::string& data, const std::string& file,
                           const config::v1::ClusterConfig& cluster) {
  TITAN_ASSIGN_OR_RETURN(const cluster::JobFile job, cluster::ReadJobFile(file));
  TITAN_ASSIGN_OR_RETURN(const formats::ModelConfig model, ConfigOf(data, job.spec.model()));
  orchestrator::JobSpec spec;  // what the needs come from, defaults as documented
  if (job.spec.schedule().has_max_age()) spec.schedule.max_age = job.spec.schedule().max_age();
  if (job.spec.evaluation().has_slots()) spec.evaluation.slots = job.spec.evaluation().slots();
  if (job.spec.training().has_shards()) spec.training.shards = job.spec.training().shards();
  spec.training.checkpoint_every_steps = job.spec.training().checkpoint_every_steps();
  spec.schedule.steps = job.spec.schedule().steps();
  spec.data.held_out = job.spec.data().held_out();
  if (!job.spec.model().mode().empty()) spec.model.mode = job.spec.model().mode();
  std::vector<orchestrator::GeneratorMemory> generators;
  for (const config::v1::GeneratorConfig& generator : cluster::GeneratorConfigs(cluster)) {
    generators.push_back({generator.kv_cache_bytes(), generator.max_batch_tokens(),
                          generator.max_running_sequences()});
  }
  JobNeeds needs;
  needs.memory = orchestrator::MemoryNeeds(model, spec, generators);
  const config::v1::WeightStoreConfig& store = cluster.weightstore();
  if (store.has_disk_limit_bytes() && store.disk_limit_bytes() == 0) return needs;  // keeps nothing
  needs.disk = orchestrator::DiskNeedsOf(model, spec);
  if (store.has_disk_limit_bytes()) {
    const uint64_t limit = store.disk_limit_bytes();
    needs.disk_left_bytes = limit - std::min(limit, BytesOfBlobs(data));
  }
  return needs;
}

// Defaults where the file is silent, or there is none.
StatusOr<config::v1::ClusterConfig> ReadCluster(const std::string& file) {
  config::v1::ClusterConfig config;
  cluster::FillClusterDefaults(&config);
  if (file.empty()) return config;
  rpc::ConfigOrigins ignored;
  TITAN_RETURN_IF_ERROR(
      rpc::ReadConfigFile(file, &config, &ignored, cluster::ValidClusterValues()));
  return config;
}

const char* NameOf(Health health) {
  return health == Health::kGood ? "ok" : health == Health::kWarning ? "warning" : "bad";
}

}  // namespace

int Doctor(const Common& common, const DoctorOptions& options) {
  const auto cluster = ReadCluster(options.config);
  if (!cluster.ok()) return Fail(cluster.status());
  std::vector<std::string> listen;
  for (const cluster::Listener& listener : cluster::FixedListeners(*cluster)) {
    listen.push_back(listener.address);
  }
  std::optional<JobNeeds> job;
  if (!options.job.empty()) {
    auto needs = NeedsOf(common.data, options.job, *cluster);
    if (!needs.ok()) {
      job.emplace();
      job->problem = MessageOf(needs.status());
    } else {
      job = *std::move(needs);
    }
  }
  const std::string bin = std::filesystem::path(runtime::ExecutablePath()).parent_path().string();
  const auto findings = Examine(ReadMachine(common.data, bin, listen), job);
  if (common.json) {
    Json out;
    out["fit"] = IsFit(findings);
    out["findings"] = Json::array();
    for (const Finding& finding : findings) {
      out["findings"].push_back({{"health", NameOf(finding.health)},
                                 {"subject", finding.subject},
                                 {"text", finding.text},
                                 {"fix", finding.fix}});
    }
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << FormatFindings(findings, cluster::Terminal::Stdout()) << std::flush;
  }
  return IsFit(findings) ? kExitOk : kExitFailed;
}

}  // namespace titan::cli
