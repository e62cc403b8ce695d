// SPDX-License-Identifier: Apache-2.0
// weights ls, show, verify.
#include <fmt/format.h>

#include <chrono>
#include <iostream>
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
  for (const auto& job : jobs) {
    const auto versions = (*store)->ListVersions(job.run_id());
    if (!versions.ok() && versions.status().code() == StatusCode::kNotFound) continue;
    if (!versions.ok()) return Fail(versions.status());
    for (const VersionInfo& version : versions->versions()) {
      rows.push_back(VersionRow(job.job_id(), version));
      Json row = Json::parse(rpc::ToJsonText(version, /*all_fields=*/true), nullptr, false);
      row["job_id"] = job.job_id();
      out.push_back(std::move(row));
    }
  }
  if (common.json) {
    std::cout << out.dump(2) << std::endl;
  } else {
    std::cout << cluster::FormatTable(rows) << std::flush;
  }
  return kExitOk;
}

int ShowWeights(const Common& common, const WeightsOptions& options) {
  auto found = FindVersion(common, options.name);
  if (!found.ok()) return Fail(found.status());
  const auto slot = found->store->Map(found->job.run_id(), found->version.version());
  if (!slot.ok()) return Fail(slot.status());
  const weightstore::Manifest& manifest = slot->manifest();
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
    Json out = Json::parse(rpc::ToJsonText(found->version, true), nullptr, false);
    out["job_id"] = found->name.job;
    out["parameters"] = parameters;
    out["slot_bytes"] = manifest.slot_bytes;
    out["config"] = config;
    out["contract_forward"] = manifest.contract_forward;
    out["tensors"] = std::move(tensors);
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
    return kExitOk;
  }
  std::cout << cluster::FormatTable({VersionHead(), VersionRow(found->name.job, found->version)})
            << fmt::format("\n{} parameters in {} tensors, {:.1f} MiB in memory\nconfig {}\n\n",
                           parameters, manifest.tensors.size(),
                           static_cast<double>(manifest.slot_bytes) / (1 << 20), config.dump())
            << cluster::FormatTable(rows) << std::flush;
  return kExitOk;
}

int VerifyWeights(const Common& common, const WeightsOptions& options) {
  auto found = FindVersion(common, options.name);
  if (!found.ok()) return Fail(found.status());
  const auto begin = std::chrono::steady_clock::now();
  const auto slot = found->store->Map(found->job.run_id(), found->version.version());
  if (!slot.ok()) return Fail(slot.status());
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string digest =
      ToHex(weightstore::WeightsDigest(slot->manifest(), slot->bytes(), threads));
  if (!slot->HeaderUnchanged()) {
    return Fail(Aborted("the version was taken back while it was read; try a newer one"));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const bool equal = digest == found->version.weights_digest();
  if (common.json) {
    Json out;
    out["job_id"] = found->name.job;
    out["version"] = found->version.version();
    out["recorded_digest"] = found->version.weights_digest();
    out["digest"] = digest;
    out["equal"] = equal;
    std::cout << out.dump(2) << std::endl;
  } else if (equal) {
    std::cout << fmt::format(
        "version {} of {}: the bytes in memory have the recorded digest {} "
        "({:.1f} MiB, {:.2f} s)\n",
        found->version.version(), found->name.job, digest,
        static_cast<double>(slot->bytes().size()) / (1 << 20), seconds);
  }
  if (equal) return kExitOk;
  return Fail(DataLoss("version " + std::to_string(found->version.version()) + " of " +
                       found->name.job + ": the bytes have digest " + digest + ", recorded is " +
                       found->version.weights_digest()));
}

}  // namespace titan::cli
