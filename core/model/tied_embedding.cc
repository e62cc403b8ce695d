// SPDX-License-Identifier: Apache-2.0
#include "core/model/tied_embedding.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/kernels/embedding.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"

namespace titan::model {

using kernels::kPanelColumns;

TiedEmbedding::TiedEmbedding(const Parameter& table)
    : table_(table), place_of_(static_cast<size_t>(table.held.size()), -1) {}

int64_t TiedEmbedding::MemoryNeeded(const ParameterTable& master_table) {
  const Parameter& table = master_table.at(master_table.embedding());
  return table.held.size() *
         (table.columns() * static_cast<int64_t>(sizeof(float)) + int64_t{2 * sizeof(int32_t)});
}

StatusOr<std::unique_ptr<TiedEmbedding>> TiedEmbedding::Create(const ParameterTable& master_table) {
  TITAN_CHECK(master_table.tied() && master_table.mode() == Mode::kF32);
  const Parameter& table = master_table.at(master_table.embedding());
  std::unique_ptr<TiedEmbedding> result(new TiedEmbedding(table));
  TITAN_ASSIGN_OR_RETURN(result->rows_, AllocateFloats(table.held.size() * table.columns()));
  return result;
}

void TiedEmbedding::Add(kernels::Pool& pool, std::span<const int32_t> tokens,
                        std::span<const kernels::RowRange> units, const float* dx) {
  const kernels::NumericThread numeric;
  const int64_t width = table_.columns();
  std::vector<int32_t> places(tokens.size(), -1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    TITAN_CHECK(tokens[i] >= 0 && tokens[i] < table_.rows());
    if (tokens[i] < table_.held.begin || tokens[i] >= table_.held.end) continue;
    const auto row = static_cast<int32_t>(tokens[i] - table_.held.begin);
    int32_t& place = place_of_[static_cast<size_t>(row)];
    if (place < 0) {
      place = static_cast<int32_t>(open_.size());
      open_.push_back(row);
      std::fill_n(rows_.get() + place * width, width, 0.0f);
    }
    places[i] = place;
  }
  // A token that is not held stands one beyond the places, which the kernel leaves out.
  const auto num_places = static_cast<int64_t>(open_.size());
  std::replace(places.begin(), places.end(), -1, static_cast<int32_t>(num_places));
  const kernels::RowRange held = {0, num_places};
  kernels::EmbeddingGradient(pool, kernels::TableLayout::kRows, dx, num_places + 1, width,
                             places.data(), units, rows_.get(), &held);
}

void TiedEmbedding::AddTo(kernels::Pool& pool, float* table_gradient) {
  const kernels::NumericThread numeric;
  const int64_t width = table_.columns(), rows = table_.held.size();
  const std::vector<float> zeros(static_cast<size_t>(width));
  pool.Run(static_cast<int>(kernels::PanelCount(rows)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    std::array<const float*, kPanelColumns> from;
    bool any = false;
    for (int64_t r = 0; r < kPanelColumns; ++r) {
      const int32_t place = first + r < rows ? place_of_[static_cast<size_t>(first + r)] : -1;
      any = any || place >= 0;
      from[static_cast<size_t>(r)] = place < 0 ? zeros.data() : rows_.get() + place * width;
    }
    float* to = table_gradient + first * width;
    if (!any) {
      for (int64_t i = 0; i < kPanelColumns * width; ++i) to[i] = to[i] + 0.0f;
      return;
    }
    for (int64_t k = 0; k < width; ++k, to += kPanelColumns) {
      for (int64_t r = 0; r < kPanelColumns; ++r) to[r] = to[r] + from[static_cast<size_t>(r)][k];
    }
  });
  Clear();
}

void TiedEmbedding::Clear() {
  for (const int32_t row : open_) place_of_[static_cast<size_t>(row)] = -1;
  open_.clear();
}

}  // namespace titan::model
