// SPDX-License-Identifier: Apache-2.0
// weights import, export, rm, gc: between model files, the weight store and its disk.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/found_version.h"
#include "clients/cluster/terminal.h"
#include "core/formats/model_bundle.h"
#include "core/kernels/pool.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"
#include "core/model/parameters.h"
#include "core/text/import_model.h"
#include "services/models/manifest_of.h"
#include "services/models/stored_source.h"
#include "services/rpc/config.h"
#include "services/weightstore_client/convert.h"
#include "weightstore/client/weights_digest.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kChunkBytes = 1u << 20;

int Threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// While one lives, SIGINT and SIGTERM are noted instead of ending the process.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action = {};
    action.sa_handler = [](int) { seen_ = 1; };
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~Interrupts() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  static Status Check() {
    return seen_ == 0 ? OkStatus() : Cancelled("interrupted; nothing was written");
  }

 private:
  static inline volatile sig_atomic_t seen_ = 0;
  struct sigaction old_int_ = {}, old_term_ = {};
};

int FailOrInterrupted(const Status& status) {
  const int code = Fail(status);
  return Interrupts::Check().ok() ? code : kExitDetached;
}

// A checked model in the layout of a slot.
struct Loaded {
  std::string bundle;
  weightstore::Manifest manifest;
  model::Floats slot;
  Hash128 digest;
  int64_t parameters = 0;
  bool has_tokenizer = false;
};

StatusOr<Loaded> Load(const std::string& path, bool without_tokenizer) {
  TITAN_ASSIGN_OR_RETURN(
      const text::ImportedModel model,
      text::ImportModel(path, text::ImportOptions{.without_tokenizer = without_tokenizer}));
  TITAN_ASSIGN_OR_RETURN(const model::ParameterTable table,
                         model::ParameterTable::Of(model.bundle.config));
  kernels::Pool pool(Threads());
  Loaded loaded;
  TITAN_ASSIGN_OR_RETURN(loaded.slot, model::AllocateFloats(table.slot_floats()));
  TITAN_RETURN_IF_ERROR(model::LoadWeights(pool, *model.source, table, loaded.slot.get()));
  loaded.bundle = formats::EncodeBundle(model.bundle);
  loaded.manifest = services::ManifestOf(table, model.bundle.config);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(loaded.slot.get()),
                                         static_cast<size_t>(table.slot_bytes()));
  loaded.digest = weightstore::WeightsDigest(loaded.manifest, bytes, Threads());
  loaded.parameters = table.num_elements();
  loaded.has_tokenizer = !model.bundle.tokenizer_json.empty();
  return loaded;
}

// The bytes that an import sends, in order: the bundle, then each tensor.
class Parts {
 public:
  explicit Parts(const Loaded& loaded) : loaded_(loaded) {}
  StatusOr<std::string> Next() {
    TITAN_RETURN_IF_ERROR(Interrupts::Check());
    const auto& tensors = loaded_.manifest.tensors;
    while (part_ <= tensors.size()) {
      const char* data = loaded_.bundle.data();
      uint64_t size = loaded_.bundle.size();
      if (part_ > 0) {
        const weightstore::TensorEntry& tensor = tensors[part_ - 1];
        data = reinterpret_cast<const char*>(loaded_.slot.get()) + tensor.offset;
        size = tensor.num_bytes;
      }
      const uint64_t take = std::min<uint64_t>(size - done_, kChunkBytes);
      if (take == 0) {
        ++part_;
        done_ = 0;
        continue;
      }
      done_ += take;
      return std::string(data + done_ - take, take);
    }
    return std::string();
  }

 private:
  const Loaded& loaded_;
  size_t part_ = 0;  // 0: the bundle
  uint64_t done_ = 0;
};

StatusOr<weightstore::v1::ImportModelResponse> Send(const Common& common, const Loaded& loaded,
                                                    const std::string& name) {
  TITAN_ASSIGN_OR_RETURN(const auto store, StoreClient::Open(common.data));
  weightstore::v1::ImportModelHeader header;
  header.set_request_id(fmt::format("titanctl-{}-{}", getpid(), ToHex(loaded.digest)));
  header.set_name(name);
  *header.mutable_manifest() = weightstore::ToProto(loaded.manifest);
  header.set_bundle_bytes(loaded.bundle.size());
  header.set_weights_digest(ToHex(loaded.digest));
  auto parts = std::make_shared<Parts>(loaded);
  return store->models().Import(header, [parts] { return parts->Next(); });
}

// ResourceExhausted, with the numbers: the volume of `folder` cannot hold the export.
Status CheckRoom(const std::string& folder, int64_t elements) {
  constexpr uint64_t kTexts = 32u << 20;  // tokenizer and the like
  const uint64_t needed = static_cast<uint64_t>(elements) * sizeof(float) + kTexts;
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (path.has_parent_path() && path != path.parent_path() &&
         !std::filesystem::exists(path, error)) {
    path = path.parent_path();
  }
  const auto space = std::filesystem::space(path, error);
  if (error || space.available >= needed) return OkStatus();
  return ResourceExhausted(fmt::format("'{}': the export needs {} bytes, the volume has {} free",
                                       folder, needed, space.available));
}

Status Export(const FoundVersion& found, const std::string& folder) {
  const Interrupts interrupts;
  if (found.stored.has_value()) {
    TITAN_ASSIGN_OR_RETURN(const text::ImportedModel model,
                           services::OpenStoredModel(found.store->models(), *found.stored));
    int64_t elements = 0;
    for (const auto& tensor : model.source->tensors()) elements += tensor.num_elements();
    TITAN_RETURN_IF_ERROR(CheckRoom(folder, elements));
    return model::ExportHfFolder(*model.source, model.bundle, folder, Interrupts::Check);
  }
  TITAN_ASSIGN_OR_RETURN(const weightstore::HeldVersion slot,
                         found.store->Map(found.job.run_id(), found.version.version()));
  TITAN_ASSIGN_OR_RETURN(const formats::ModelBundle bundle,
                         services::ReadBundle(found.store->models(), slot.manifest().bundle,
                                              std::nullopt, found.title()));
  TITAN_ASSIGN_OR_RETURN(const model::Mode mode,
                         model::ModeFromName(slot.manifest().numerics_mode));
  TITAN_ASSIGN_OR_RETURN(const model::ParameterTable table,
                         model::ParameterTable::Of(bundle.config, mode));
  if (static_cast<uint64_t>(table.slot_bytes()) != slot.manifest().slot_bytes) {
    return FailedPrecondition(
        "the slot has another layout than this program: titanctl and the "
        "daemons are of different versions");
  }
  TITAN_RETURN_IF_ERROR(CheckRoom(folder, table.num_elements()));
  kernels::Pool pool(Threads());
  const auto go_on = [&slot] {
    TITAN_RETURN_IF_ERROR(Interrupts::Check());
    return slot.HeaderUnchanged()
               ? OkStatus()
               : Aborted("the version was taken back while it was written; try a newer one");
  };
  // Asked after the last block too, before the folder gets its name.
  return model::ExportHfFolder(pool, table, slot.bytes().data(), bundle, folder, go_on);
}

}  // namespace

int ImportWeights(const Common& common, const WeightsOptions& options) {
  if (!options.id.empty()) {
    const Status name = weightstore::CheckModelName(options.id);
    if (!name.ok()) return Fail(Annotate(name, "--id"));
  }
  const auto loaded = Load(options.name, options.without_tokenizer);
  if (!loaded.ok()) {
    Fail(loaded.status());
    const text::ImportOptions bare{.without_tokenizer = true};
    if (!options.without_tokenizer && text::ImportModel(options.name, bare).ok() &&
        !text::ImportModel(options.name).ok()) {
      std::cerr << "fix: the rest of the model can be read; --without_tokenizer imports it without "
                   "tokenizer and chat template, to be exported, not for jobs\n";
    }
    // Whatever it is, it is wrong with what was given.
    return loaded.status().code() == StatusCode::kUnavailable ||
                   loaded.status().code() == StatusCode::kResourceExhausted
               ? kExitFailed
               : kExitUsage;
  }
  const Interrupts interrupts;
  const auto imported = Send(common, *loaded, options.id);
  if (!imported.ok()) return FailOrInterrupted(imported.status());
  const weightstore::v1::StoredModel& model = imported->model();
  if (common.json) {
    Json out;
    out["id"] = model.id();
    out["names"] = model.names();
    out["weights_digest"] = model.weights_digest();
    out["parameters"] = loaded->parameters;
    out["num_bytes"] = model.num_bytes();
    out["existed"] = imported->existed();
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
    return kExitOk;
  }
  std::cout << model.id() << std::endl;
  std::cerr << fmt::format("{} parameters, weights digest {}, {} on disk{}\n", loaded->parameters,
                           model.weights_digest(), MebiBytes(model.num_bytes()),
                           imported->existed() ? ", stored before" : "");
  if (loaded->has_tokenizer) {
    std::cerr << fmt::format("use it as \"model\": {{\"id\": \"{}\"}}\n",
                             options.id.empty() ? model.id() : options.id);
  } else {
    std::cerr << "it has no tokenizer: it can be exported, but not used by a job\n";
  }
  return kExitOk;
}

int ExportWeights(const Common& common, const WeightsOptions& options) {
  std::error_code unknown;
  std::filesystem::path to = std::filesystem::absolute(options.to, unknown);
  if (!to.has_filename()) to = to.parent_path();  // a slash at the end
  if (!std::filesystem::is_directory(to.parent_path(), unknown)) {
    return Fail(InvalidArgument("--to '" + options.to + "': the folder '" +
                                to.parent_path().string() + "' does not exist; make it"));
  }
  const auto found = FindVersion(common, options.name);
  if (!found.ok()) return Fail(found.status());
  const Status written = Export(*found, options.to);
  if (!written.ok()) return FailOrInterrupted(written);
  if (common.json) {
    Json out;
    out["folder"] = options.to;
    if (found->is_model()) {
      out["model_id"] = found->stored->id;
    } else {
      out["job_id"] = found->name.job;
      out["version"] = found->version.version();
    }
    out["weights_digest"] = found->digest();
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << fmt::format("{}, digest {}: {}\n", found->title(), found->digest(), options.to);
  }
  return kExitOk;
}

int RemoveWeights(const Common& common, const WeightsOptions& options) {
  weightstore::v1::DeleteStoredModelRequest request;
  request.set_request_id(fmt::format("titanctl-{}-rm", getpid()));
  std::unique_ptr<StoreClient> store;
  std::string title = "model " + options.name;
  if (IsVersionName(options.name)) {
    auto found = FindVersion(common, options.name);
    if (!found.ok()) return Fail(found.status());
    title = found->title();
    if (found->version.kept_bytes() == 0) {
      return Fail(FailedPrecondition(title + " is not on disk; its memory is given back when the "
                                             "job ends"));
    }
    request.set_run_id(found->job.run_id());
    request.set_version(found->version.version());
    store = std::move(found->store);
  } else {
    request.set_id(options.name);
    auto opened = StoreClient::Open(common.data);
    if (!opened.ok()) return Fail(opened.status());
    store = *std::move(opened);
  }
  const auto freed = store->Delete(request);
  if (!freed.ok()) return Fail(freed.status());
  if (common.json) {
    Json out;
    out["freed_bytes"] = *freed;
    std::cout << out.dump(2) << std::endl;
  } else {
    std::cout << fmt::format("{}: deleted, {} freed\n", title, MebiBytes(*freed));
  }
  return kExitOk;
}

int CollectWeights(const Common& common, const WeightsOptions& options) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto jobs = (*client)->ListJobs();
  if (!jobs.ok()) return Fail(jobs.status());
  std::map<std::string, std::string> job_of_run;
  for (const auto& job : jobs->jobs()) job_of_run[job.run_id()] = job.job_id();
  auto store = StoreClient::Open(common.data);
  if (!store.ok()) return Fail(store.status());
  weightstore::v1::CollectGarbageRequest request;
  request.set_request_id(fmt::format("titanctl-{}-gc", getpid()));
  request.set_keep_runs(options.keep);
  request.set_dry_run(!options.yes);
  const auto collected = (*store)->CollectGarbage(request);
  if (!collected.ok()) return Fail(collected.status());
  if (common.json) {
    Json versions = Json::array();
    for (const auto& version : collected->versions()) {
      Json row = Json::parse(rpc::ToJsonText(version, /*all_fields=*/true), nullptr, false);
      const auto job = job_of_run.find(version.run_id());
      row["job_id"] = job == job_of_run.end() ? "" : job->second;
      versions.push_back(std::move(row));
    }
    const Json out = {{"deleted", options.yes},
                      {"versions", std::move(versions)},
                      {"freed_bytes", collected->freed_bytes()},
                      {"versions_left", collected->versions_left()}};
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
    return kExitOk;
  }
  const std::string command = fmt::format("titanctl weights gc --keep {} --yes --data {}",
                                          options.keep, cluster::ShellWord(common.data));
  std::cout << FormatCollected(*collected, job_of_run, options.yes ? "" : command) << std::flush;
  return kExitOk;
}

}  // namespace titan::cli
