// SPDX-License-Identifier: Apache-2.0
#include "core/model/model_files.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/base/check.h"
#include "core/formats/hf_folder.h"

namespace titan::model {
namespace {

int64_t LargestParameter(const ParameterTable& table) {
  int64_t largest = 0;
  for (const Parameter& p : table.parameters()) largest = std::max(largest, p.num_elements());
  return largest;
}

constexpr int64_t kPanelRows = 32;            // core/kernels/panels.h
constexpr int64_t kExportElements = 1 << 20;  // in memory at a time, at least kPanelRows rows

// Rows [first, first + count) as a parameter of its own. REQUIRES: first is a multiple of
// kPanelRows.
Parameter RowsOf(const Parameter& p, int64_t first, int64_t count) {
  const int64_t step = p.layout == Layout::kRows ? 1 : kPanelRows;
  const int64_t step_bytes = p.bytes / ((p.rows() + step - 1) / step);
  Parameter rows = p;
  rows.shape[0] = count;
  rows.held = {0, count};
  rows.offset += first / step * step_bytes;
  rows.bytes = (count + step - 1) / step * step_bytes;
  return rows;
}

}  // namespace

Status LoadWeights(kernels::Pool& pool, const formats::ModelSource& source,
                   const ParameterTable& table, void* slot) {
  std::vector<float> values(static_cast<size_t>(LargestParameter(table)));
  for (int i = 0; i < table.size(); ++i) {
    const Parameter& p = table.at(i);
    const std::span<float> part = std::span(values).first(static_cast<size_t>(p.num_elements()));
    TITAN_RETURN_IF_ERROR(source.ReadTensorF32(p.name, part));
    TITAN_RETURN_IF_ERROR(StoreParameter(pool, p, part, slot));
    const int64_t end = i + 1 < table.size() ? table.at(i + 1).offset : table.slot_bytes();
    char* gap = static_cast<char*>(slot) + p.offset + p.bytes;
    std::memset(gap, 0, static_cast<size_t>(end - p.offset - p.bytes));
  }
  return OkStatus();
}

Status ExportHfFolder(kernels::Pool& pool, const ParameterTable& table, const void* slot,
                      const formats::ModelBundle& bundle, const std::string& folder,
                      const std::function<Status()>& go_on) {
  TITAN_ASSIGN_OR_RETURN(formats::HfFolderWriter writer,
                         formats::HfFolderWriter::Create(folder, bundle));
  TITAN_CHECK(table.shard().size == 1);
  std::vector<float> values;
  for (const Parameter& p : table.parameters()) {
    const int64_t block =
        std::max<int64_t>(kExportElements / p.columns() / kPanelRows * kPanelRows, kPanelRows);
    for (int64_t first = 0; first < p.rows(); first += block) {
      const Parameter rows = RowsOf(p, first, std::min(block, p.rows() - first));
      values.resize(static_cast<size_t>(rows.num_elements()));
      ReadParameter(pool, rows, slot, values);
      TITAN_RETURN_IF_ERROR(writer.Append(p.name, values));
      if (go_on) TITAN_RETURN_IF_ERROR(go_on());
    }
  }
  return writer.Finish();
}

Status ExportHfFolder(const formats::ModelSource& source, const formats::ModelBundle& bundle,
                      const std::string& folder, const std::function<Status()>& go_on) {
  TITAN_ASSIGN_OR_RETURN(formats::HfFolderWriter writer,
                         formats::HfFolderWriter::Create(folder, bundle));
  std::vector<float> values;
  for (const formats::TensorSpec& tensor : source.tensors()) {
    values.resize(static_cast<size_t>(tensor.num_elements()));
    TITAN_RETURN_IF_ERROR(source.ReadTensorF32(tensor.name, values));
    TITAN_RETURN_IF_ERROR(writer.Append(tensor.name, values));
    if (go_on) TITAN_RETURN_IF_ERROR(go_on());
  }
  return writer.Finish();
}

}  // namespace titan::model
