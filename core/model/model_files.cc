// SPDX-License-Identifier: Apache-2.0
#include "core/model/model_files.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/formats/hf_folder.h"

namespace titan::model {
namespace {

int64_t LargestParameter(const ParameterTable& table) {
  int64_t largest = 0;
  for (const Parameter& p : table.parameters()) largest = std::max(largest, p.num_elements());
  return largest;
}

}  // namespace

Status LoadWeights(kernels::Pool& pool, const formats::ModelSource& source,
                   const ParameterTable& table, float* slot) {
  std::vector<float> values(static_cast<size_t>(LargestParameter(table)));
  for (int i = 0; i < table.size(); ++i) {
    const Parameter& p = table.at(i);
    const std::span<float> part = std::span(values).first(static_cast<size_t>(p.num_elements()));
    TITAN_RETURN_IF_ERROR(source.ReadTensorF32(p.name, part));
    StoreParameter(pool, p, part, slot);
    const int64_t end = i + 1 < table.size() ? table.at(i + 1).offset : table.slot_bytes();
    char* gap = reinterpret_cast<char*>(slot) + p.offset + p.bytes;
    std::memset(gap, 0, static_cast<size_t>(end - p.offset - p.bytes));
  }
  return OkStatus();
}

Status ExportHfFolder(kernels::Pool& pool, const ParameterTable& table, const float* slot,
                      const formats::ModelBundle& bundle, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(formats::HfFolderWriter writer,
                         formats::HfFolderWriter::Create(folder, bundle));
  std::vector<float> values(static_cast<size_t>(LargestParameter(table)));
  for (const Parameter& p : table.parameters()) {
    const std::span<float> part = std::span(values).first(static_cast<size_t>(p.num_elements()));
    ReadParameter(pool, p, slot, part);
    TITAN_RETURN_IF_ERROR(writer.Append(p.name, part));
  }
  return writer.Finish();
}

}  // namespace titan::model
