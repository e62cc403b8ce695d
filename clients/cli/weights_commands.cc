// SPDX-License-Identifier: Apache-2.0
// weights ls, show, verify.
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <map>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/found_version.h"
#include "clients/cluster/terminal.h"
#include "services/rpc/config.h"
#include "weightstore/client/weights_digest.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;
using weightstore::v1::VersionInfo;

// The weights of a version or model: in memory, or to be read from disk.
struct Weights {
  weightstore::HeldVersion slot;  // mapped, or `stored` of the FoundVersion
  const weightstore::Manifest* manifest = nullptr;
};

StatusOr<Weights> Open(const FoundVersion& found) {
  Weights weights;
  if (found.stored.has_value()) {
    weights.manifest = found.stored->manifest.get();
    return weights;
  }
  TITAN_ASSIGN_OR_RETURN(weights.slot,
                         found.store->Map(found.job.run_id(), found.version.version()));
  weights.manifest = &weights.slot.manifest();
  return weights;
}

// Reads every byte.
StatusOr<Hash128> DigestOf(const FoundVersion& found, const Weights& weights) {
  if (!found.stored.has_value()) {
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const Hash128 digest =
        weightstore::WeightsDigest(*weights.manifest, weights.slot.bytes(), threads);
    if (weights.slot.HeaderUnchanged()) return digest;
    return Aborted("the version was taken back while it was read; try a newer one");
  }
  Hash128 sum, bundle;
  if (FromHex(found.stored->bundle, &bundle)) {
    const auto text = found.store->models().ReadBlob(bundle, found.stored->bundle_bytes);
    if (!text.ok()) return Annotate(text.status(), found.title() + ": bundle");
  }
  for (size_t i = 0; i < weights.manifest->tensors.size(); ++i) {
    const weightstore::TensorEntry& tensor = weights.manifest->tensors[i];
    const auto bytes = found.store->models().ReadBlob(found.stored->blobs[i], tensor.num_bytes);
    if (!bytes.ok()) return Annotate(bytes.status(), found.title() + ": tensor " + tensor.name);
    sum += weightstore::TensorDigest(tensor, reinterpret_cast<const std::byte*>(bytes->data()));
  }
  return sum;
}

Json HeadOf(const FoundVersion& found) {
  if (!found.is_model()) {
    Json head = Json::parse(rpc::ToJsonText(found.version, true), nullptr, false);
    head["job_id"] = found.name.job;
    return head;
  }
  return {{"model_id", found.stored->id},
          {"names", found.stored->names},
          {"weights_digest", found.digest()},
          {"num_bytes", found.stored->num_bytes()}};
}

std::vector<std::vector<std::string>> TableOf(const FoundVersion& found) {
  if (!found.is_model()) return {VersionHead(), VersionRow(found.name.job, found.version)};
  weightstore::v1::StoredModel model;
  model.set_id(found.stored->id);
  for (const std::string& name : found.stored->names) model.add_names(name);
  model.set_weights_digest(found.digest());
  model.set_stored_unix_ms(found.stored->stored_unix_ms);
  model.set_num_bytes(found.stored->num_bytes());
  return {ModelHead(), ModelRow(model)};
}

}  // namespace

int ListWeights(const Common& common, const WeightsOptions& options) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  std::vector<orchestrator::v1::Job> jobs;
  if (options.name.empty()) {
    const auto all = (*client)->ListJobs();
    if (!all.ok()) return Fail(all.status());
    jobs.assign(all->jobs().begin(), all->jobs().end());
  } else {
    const auto job = (*client)->Get(options.name);
    if (!job.ok()) return Fail(job.status());
    jobs.push_back(*job);
  }
  auto store = StoreClient::Open(common.data);
  if (!store.ok()) return Fail(store.status());
  std::vector<std::vector<std::string>> rows = {VersionHead()};
  Json out = Json::array();
  size_t not_shown = 0;
  std::map<std::string, std::string> job_of_run;
  for (const auto& job : jobs) {
    job_of_run[job.run_id()] = job.job_id();
    const auto versions = (*store)->ListVersions(job.run_id());
    if (!versions.ok() && versions.status().code() == StatusCode::kNotFound) continue;
    if (!versions.ok()) return Fail(versions.status());
    for (const VersionInfo& version : versions->versions()) {
      if (!options.all && !Exists(version)) {
        ++not_shown;
        continue;
      }
      rows.push_back(VersionRow(job.job_id(), version));
      Json row = Json::parse(rpc::ToJsonText(version, /*all_fields=*/true), nullptr, false);
      row["job_id"] = job.job_id();
      out.push_back(std::move(row));
    }
  }
  const std::string rest = NotShown(not_shown);
  if (!options.name.empty()) {  // of one job
    std::cout << (common.json ? out.dump(2) + "\n"
                              : (rows.size() > 1 ? cluster::FormatTable(rows) : "") + rest)
              << std::flush;
    return kExitOk;
  }
  const auto stored = (*store)->ListStoredModels();
  if (!stored.ok()) return Fail(stored.status());
  std::vector<std::vector<std::string>> models = {ModelHead()};
  Json list = Json::array();
  for (const auto& model : stored->models()) {
    if (!model.run_id().empty()) continue;  // a kept version stands in its own row
    models.push_back(ModelRow(model));
    list.push_back(Json::parse(rpc::ToJsonText(model, /*all_fields=*/true), nullptr, false));
  }
  if (common.json) {
    Json checkpoints = Json::array();
    for (const auto& checkpoint : stored->checkpoints()) {
      checkpoints.push_back({{"job_id", job_of_run[checkpoint.run_id()]},
                             {"run_id", checkpoint.run_id()},
                             {"version", checkpoint.version()},
                             {"state_digest", checkpoint.weights_digest()},
                             {"stored_unix_ms", checkpoint.stored_unix_ms()},
                             {"num_bytes", checkpoint.num_bytes()}});
    }
    const Json disk = {{"used_bytes", stored->disk_used_bytes()},
                       {"reserved_bytes", stored->disk_reserved_bytes()},
                       {"available_bytes", stored->disk_available_bytes()}};
    std::cout << Json{{"versions", out},
                      {"models", list},
                      {"checkpoints", checkpoints},
                      {"disk", disk}}
                     .dump(2, ' ', false, Json::error_handler_t::replace)
              << std::endl;
    return kExitOk;
  }
  if (rows.size() > 1) std::cout << cluster::FormatTable(rows);
  std::cout << rest << (rows.size() > 1 || !rest.empty() ? "\n" : "");
  if (models.size() > 1) std::cout << cluster::FormatTable(models) << "\n";
  const std::string checkpoints = FormatCheckpoints(*stored, job_of_run);
  std::cout << checkpoints << (checkpoints.empty() ? "" : "\n");
  std::cout << fmt::format("disk: {} used, {} reserved, {} available\n",
                           MebiBytes(stored->disk_used_bytes()),
                           MebiBytes(stored->disk_reserved_bytes()),
                           MebiBytes(stored->disk_available_bytes()))
            << std::flush;
  return kExitOk;
}

int ShowWeights(const Common& common, const WeightsOptions& options) {
  auto found = FindVersion(common, options.name);
  if (!found.ok()) return Fail(found.status());
  const auto weights = Open(*found);
  if (!weights.ok()) return Fail(weights.status());
  const weightstore::Manifest& manifest = *weights->manifest;
  int64_t parameters = 0;
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "SHAPE", "TYPE", "BYTES"}};
  Json tensors = Json::array();
  for (const weightstore::TensorEntry& tensor : manifest.tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    parameters += elements;
    rows.push_back({tensor.name, fmt::format("{}", fmt::join(tensor.shape, " x ")),
                    std::string(weightstore::NameOf(tensor.dtype)),
                    std::to_string(tensor.num_bytes)});
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", weightstore::NameOf(tensor.dtype)},
                       {"num_bytes", tensor.num_bytes}});
  }
  const Json config = Json::parse(manifest.model_config_json, nullptr, false);
  if (common.json) {
    Json out = HeadOf(*found);
    out["parameters"] = parameters;
    out["slot_bytes"] = manifest.slot_bytes;
    out["config"] = config;
    out["contract_forward"] = manifest.contract_forward;
    out["contract_training"] = manifest.contract_training;
    out["tensors"] = std::move(tensors);
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
    return kExitOk;
  }
  std::cout << cluster::FormatTable(TableOf(*found))
            << fmt::format("\n{} parameters in {} tensors, {} in memory\nconfig {}\n\n", parameters,
                           manifest.tensors.size(), MebiBytes(manifest.slot_bytes), config.dump())
            << cluster::FormatTable(rows) << std::flush;
  return kExitOk;
}

int VerifyWeights(const Common& common, const WeightsOptions& options) {
  auto found = FindVersion(common, options.name);
  if (!found.ok()) return Fail(found.status());
  const auto begin = std::chrono::steady_clock::now();
  const auto weights = Open(*found);
  if (!weights.ok()) return Fail(weights.status());
  const auto read = DigestOf(*found, *weights);
  if (!read.ok()) return Fail(read.status());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string digest = ToHex(*read);
  const bool equal = digest == found->digest();
  if (common.json) {
    Json out;
    if (found->is_model()) {
      out["model_id"] = found->stored->id;
    } else {
      out["job_id"] = found->name.job;
      out["version"] = found->version.version();
    }
    out["recorded_digest"] = found->digest();
    out["digest"] = digest;
    out["equal"] = equal;
    std::cout << out.dump(2) << std::endl;
  } else if (equal) {
    std::cout << fmt::format("{}: the bytes {} have the recorded digest {} ({}, {:.2f} s)\n",
                             found->title(), found->stored.has_value() ? "on disk" : "in memory",
                             digest, MebiBytes(weights->manifest->slot_bytes), seconds);
  }
  if (equal) return kExitOk;
  return Fail(DataLoss(found->title() + ": the bytes have digest " + digest + ", recorded is " +
                       found->digest()));
}

}  // namespace titan::cli
