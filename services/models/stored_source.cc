// SPDX-License-Identifier: Apache-2.0
#include "services/models/stored_source.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/formats/convert.h"
#include "core/formats/tensor_set.h"
#include "core/kernels/pool.h"
#include "core/model/memory.h"
#include "services/models/manifest_of.h"

namespace titan::services {
namespace {

using weightstore::ModelPort;
using weightstore::StoredModel;

class StoredSource final : public formats::ModelSource {
 public:
  StoredSource(ModelPort& port, StoredModel model, formats::ModelBundle bundle,
               model::ParameterTable table)
      : port_(port),
        model_(std::move(model)),
        path_(Describe(model_)),
        bundle_(std::move(bundle)),
        table_(std::move(table)),
        tensors_(formats::CanonicalTensors(bundle_.config)),
        tokenizer_(formats::TokenizerMaterialOf(bundle_)) {}

  const std::string& path() const override { return path_; }
  const formats::ModelConfig& config() const override { return bundle_.config; }
  const std::vector<formats::TensorSpec>& tensors() const override { return tensors_; }
  const formats::TokenizerMaterial& tokenizer() const override { return tokenizer_; }
  const std::string& chat_template() const override { return bundle_.chat_template; }
  const std::string& generation_config() const override { return bundle_.generation_config_json; }

  Status ReadTensorF32(std::string_view name, std::span<float> out) const override {
    const int index = table_.Find(name);
    if (index < 0) return NotFound(path_ + ": no tensor " + std::string(name));
    model::Parameter parameter = table_.at(index);
    if (static_cast<int64_t>(out.size()) != parameter.num_elements()) {
      return InvalidArgument(path_ + ": tensor " + parameter.name + " has " +
                             std::to_string(parameter.num_elements()) + " elements");
    }
    const StatusOr<std::string> bytes = port_.ReadBlob(model_.blobs[static_cast<size_t>(index)],
                                                       static_cast<uint64_t>(parameter.bytes));
    const std::string where = path_ + ": tensor " + parameter.name;
    if (bytes.status().code() == StatusCode::kNotFound) {
      return NotFound(where + " was removed from the weight store's disk while it was read: " +
                      MessageOf(bytes.status()));
    }
    if (!bytes.ok()) return Annotate(bytes.status(), where);
    // Kernels want aligned memory.
    TITAN_ASSIGN_OR_RETURN(const model::Floats aligned,
                           model::AllocateFloats((parameter.bytes + 3) / 4));
    std::memcpy(aligned.get(), bytes->data(), bytes->size());
    parameter.offset = 0;
    {
      const std::lock_guard lock(mutex_);
      model::ReadParameter(pool_, parameter, aligned.get(), out);
    }
    const Status clean = formats::CleanWeights(name, out);
    return clean.ok() ? clean : Annotate(clean, path_);
  }

 private:
  ModelPort& port_;
  const StoredModel model_;
  const std::string path_;
  const formats::ModelBundle bundle_;
  const model::ParameterTable table_;
  const std::vector<formats::TensorSpec> tensors_;
  const formats::TokenizerMaterial tokenizer_;
  mutable std::mutex mutex_;  // the pool runs one caller at a time
  mutable kernels::Pool pool_{1};
};

}  // namespace

std::string Describe(const StoredModel& model) {
  if (!model.run_id.empty()) {
    return "version " + std::to_string(model.version) + " of run " + model.run_id;
  }
  return "model " + (model.names.empty() ? model.id : model.names[0]);
}

StatusOr<formats::ModelBundle> ReadBundle(ModelPort& port, const std::string& hex,
                                          std::optional<uint64_t> num_bytes,
                                          const std::string& where) {
  Hash128 digest;
  if (!FromHex(hex, &digest)) {
    return FailedPrecondition(where + ": has no bundle (config, tokenizer and chat template)");
  }
  const StatusOr<std::string> text = port.ReadBlob(digest, num_bytes);
  if (!text.ok()) return Annotate(text.status(), where + ": bundle");
  return formats::DecodeBundle(*text, where + ": bundle");
}

StatusOr<formats::ModelBundle> ReadBundle(ModelPort& port, const StoredModel& model) {
  return ReadBundle(port, model.bundle, model.bundle_bytes, Describe(model));
}

StatusOr<text::ImportedModel> OpenStoredModel(ModelPort& port, const StoredModel& model) {
  text::ImportedModel opened;
  TITAN_ASSIGN_OR_RETURN(opened.bundle, ReadBundle(port, model));
  const std::string where = Describe(model);
  const auto mode = model::ModeFromName(model.manifest->numerics_mode);
  if (!mode.ok()) return FailedPrecondition(where + ": " + MessageOf(mode.status()));
  StatusOr<model::ParameterTable> table = model::ParameterTable::Of(opened.bundle.config, *mode);
  if (!table.ok()) return Annotate(table.status(), where);
  const weightstore::Manifest expected = ManifestOf(*table, opened.bundle.config);
  if (expected.tensors != model.manifest->tensors) {
    return FailedPrecondition(where +
                              ": was stored in a layout that this program does not have; import "
                              "the model again");
  }
  opened.source = std::make_unique<StoredSource>(port, model, opened.bundle, *std::move(table));
  return opened;
}

}  // namespace titan::services
