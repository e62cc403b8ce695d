// SPDX-License-Identifier: Apache-2.0
// weights import, export: between model files and weights.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/found_version.h"
#include "core/formats/model_bundle.h"
#include "core/kernels/pool.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"
#include "core/model/parameters.h"
#include "core/runtime/files.h"
#include "core/text/import_model.h"
#include "weightstore/client/weights_digest.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;

int Threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// The manifest that a trainer registers for these parameters in mode f32, as far as the digest
// needs it.
weightstore::Manifest ManifestOf(const model::ParameterTable& table) {
  weightstore::Manifest manifest;
  for (const model::Parameter& parameter : table.parameters()) {
    weightstore::TensorEntry entry;
    entry.name = parameter.name;
    entry.shape = parameter.shape;
    if (parameter.layout == model::Layout::kPanels) entry.layout = weightstore::Layout::kPanels32;
    entry.offset = static_cast<uint64_t>(parameter.offset);
    entry.num_bytes = static_cast<uint64_t>(parameter.bytes);
    manifest.tensors.push_back(std::move(entry));
  }
  manifest.slot_bytes = static_cast<uint64_t>(table.slot_bytes());
  return manifest;
}

struct Imported {
  std::string digest;  // of the weights: that of version 0 of a job on this model in mode f32
  std::string id;      // of weights, config, tokenizer and template together
  std::string folder;
  bool existed = false;
  int64_t parameters = 0;
};

StatusOr<Imported> Import(const std::string& path, const std::string& models) {
  TITAN_ASSIGN_OR_RETURN(const text::ImportedModel model, text::ImportModel(path));
  TITAN_ASSIGN_OR_RETURN(const model::ParameterTable table,
                         model::ParameterTable::Of(model.bundle.config));
  kernels::Pool pool(Threads());
  TITAN_ASSIGN_OR_RETURN(const model::Floats slot, model::AllocateFloats(table.slot_bytes() / 4));
  TITAN_RETURN_IF_ERROR(model::LoadWeights(pool, *model.source, table, slot.get()));
  Imported imported;
  imported.parameters = table.num_elements();
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(slot.get()),
                                         static_cast<size_t>(table.slot_bytes()));
  imported.digest = ToHex(weightstore::WeightsDigest(ManifestOf(table), bytes, Threads()));
  const std::string content = imported.digest + formats::EncodeBundle(model.bundle);
  imported.id = ToHex(Hash128Of(content.data(), content.size(), 0));
  imported.folder = models + "/" + imported.id;
  std::error_code error;
  imported.existed = std::filesystem::exists(imported.folder, error);
  if (imported.existed) return imported;
  TITAN_RETURN_IF_ERROR(runtime::MakeWritableFolder(models));
  TITAN_RETURN_IF_ERROR(
      model::ExportHfFolder(pool, table, slot.get(), model.bundle, imported.folder));
  return imported;
}

Status Export(const FoundVersion& found, const std::string& folder) {
  // Tokenizer and template are those of the job's model.
  auto model = text::ImportModel(found.job.spec().model().path());
  if (!model.ok()) return Annotate(model.status(), "model.path of " + found.name.job);
  TITAN_ASSIGN_OR_RETURN(const weightstore::MappedSlot slot,
                         found.store->Map(found.job.run_id(), found.version.version()));
  const auto mode = model::ModeFromName(slot.manifest().numerics_mode);
  if (!mode.ok()) return mode.status();
  TITAN_ASSIGN_OR_RETURN(const model::ParameterTable table,
                         model::ParameterTable::Of(model->bundle.config, *mode));
  if (formats::ToHfConfigJson(model->bundle.config) != slot.manifest().model_config_json) {
    return FailedPrecondition("the model at '" + found.job.spec().model().path() +
                              "' is not the one that " + found.name.job +
                              " trains any more: its configuration differs");
  }
  kernels::Pool pool(Threads());
  TITAN_RETURN_IF_ERROR(
      model::ExportHfFolder(pool, table, slot.bytes().data(), model->bundle, folder));
  if (slot.HeaderUnchanged()) return OkStatus();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return Aborted("the version was taken back while it was written; try a newer one");
}

}  // namespace

int ImportWeights(const Common& common, const WeightsOptions& options) {
  const auto imported = Import(options.name, common.data + "/models");
  if (!imported.ok()) {
    const int code = Fail(imported.status());
    return imported.status().code() == StatusCode::kNotFound ? kExitUsage : code;
  }
  std::error_code error;
  const std::string folder = std::filesystem::weakly_canonical(imported->folder, error).string();
  if (common.json) {
    Json out;
    out["id"] = imported->id;
    out["weights_digest"] = imported->digest;
    out["parameters"] = imported->parameters;
    out["folder"] = folder;
    out["existed"] = imported->existed;
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
    return kExitOk;
  }
  std::cout << imported->id << std::endl;
  std::cerr << fmt::format(
      "{} parameters, weights digest {}{}\nuse it as \"model\": {{\"path\": \"{}\"}}\n",
      imported->parameters, imported->digest, imported->existed ? ", stored before" : "", folder);
  return kExitOk;
}

int ExportWeights(const Common& common, const WeightsOptions& options) {
  const auto found = FindVersion(common, options.name);
  if (!found.ok()) return Fail(found.status());
  const Status written = Export(*found, options.to);
  if (!written.ok()) return Fail(written);
  if (common.json) {
    Json out;
    out["folder"] = options.to;
    out["job_id"] = found->name.job;
    out["version"] = found->version.version();
    out["weights_digest"] = found->version.weights_digest();
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << fmt::format("version {} of {}, digest {}: {}\n", found->version.version(),
                             found->name.job, found->version.weights_digest(), options.to);
  }
  return kExitOk;
}

}  // namespace titan::cli
