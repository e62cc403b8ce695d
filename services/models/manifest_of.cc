// SPDX-License-Identifier: Apache-2.0
#include "services/models/manifest_of.h"

namespace titan::services {

weightstore::TensorEntry EntryOf(const model::Parameter& parameter) {
  weightstore::TensorEntry entry;
  entry.name = parameter.name;
  entry.shape = parameter.shape;
  const bool bf16 = parameter.element == kernels::Element::kBf16;
  entry.dtype = bf16 ? weightstore::DType::kBf16 : weightstore::DType::kF32;
  if (parameter.layout == model::Layout::kPanels) {
    entry.layout = bf16 ? weightstore::Layout::kPanels32K2 : weightstore::Layout::kPanels32;
  }
  entry.offset = static_cast<uint64_t>(parameter.offset);
  entry.num_bytes = static_cast<uint64_t>(parameter.bytes);
  return entry;
}

weightstore::Manifest ManifestOf(const model::ParameterTable& table,
                                 const formats::ModelConfig& config) {
  weightstore::Manifest manifest;
  for (const model::Parameter& parameter : table.parameters()) {
    manifest.tensors.push_back(EntryOf(parameter));
  }
  manifest.slot_bytes = static_cast<uint64_t>(table.slot_bytes());
  manifest.model_config_json = formats::ToHfConfigJson(config);
  manifest.numerics_mode = model::ModeName(table.mode());
  return manifest;
}

}  // namespace titan::services
