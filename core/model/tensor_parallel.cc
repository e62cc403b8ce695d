// SPDX-License-Identifier: Apache-2.0
#include "core/model/tensor_parallel.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/check.h"
#include "core/kernels/head.h"
#include "core/kernels/panels.h"

namespace titan::model {
namespace {

constexpr int64_t kStagingFloats = int64_t{1} << 20;
constexpr int64_t kAlignment = 16;  // floats

int64_t Aligned(int64_t floats) { return (floats + kAlignment - 1) / kAlignment * kAlignment; }

// Matrices whose input gradient is computed from a second shard: all that are cut, but for an
// embedding that is no head.
bool HasColumns(const ParameterTable& table, int i) {
  return table.at(i).owned_step > 0 && (i != table.embedding() || table.tied());
}

// Bytes of `columns` columns (whole panels of the transposed matrix) in one panel.
int64_t PanelBytes(const Parameter& p, int64_t columns) {
  return kernels::PanelElements(p.element, 1, columns) * kernels::ElementBytes(p.element);
}

int64_t Largest(const ParameterTable& table, int64_t (*of)(const Parameter&)) {
  int64_t largest = 0;
  for (const Parameter& p : table.parameters()) {
    if (p.owned_step > 0) largest = std::max(largest, of(p));
  }
  return largest;
}

std::byte* Bytes(float* floats) { return reinterpret_cast<std::byte*>(floats); }

}  // namespace

TensorParallel::TensorParallel(const Decoder& decoder, Ranks& ranks,
                               const Workspace::Limits& limits)
    : decoder_(decoder), ranks_(ranks), shard_(decoder.shard()), limits_(limits) {}

int64_t TensorParallel::MemoryNeeded(const Decoder& decoder, const Workspace::Limits& limits) {
  struct None final : Ranks {
    int rank() const override { return 0; }
    int size() const override { return 1; }
    Status AllGather(std::span<const std::span<std::byte>>) override { return OkStatus(); }
  } none;
  return TensorParallel(decoder, none, limits).Plan(decoder, nullptr) *
         static_cast<int64_t>(sizeof(float));
}

int64_t TensorParallel::Plan(const Decoder& decoder, float* memory) {
  int64_t used = 0;
  const auto take = [&](int64_t floats) {
    float* array = memory == nullptr ? nullptr : memory + used;
    used += Aligned(floats);
    return array;
  };
  const ParameterTable& table = decoder.table();
  columns_.assign(static_cast<size_t>(table.size()), nullptr);
  if (limits_.backward) {
    for (int i = 0; i < table.size(); ++i) {
      if (!HasColumns(table, i)) continue;
      const Parameter& p = table.at(i);
      const int64_t bytes =
          kernels::PanelCount(p.rows()) * PanelBytes(p, OwnedColumns(p, shard_).size());
      columns_[static_cast<size_t>(i)] =
          reinterpret_cast<std::byte*>(take(bytes / static_cast<int64_t>(sizeof(float))));
    }
  }
  // A row of any array that is gathered, and a panel of every rank, fit.
  const int64_t row = std::max(Largest(table, [](const Parameter& p) { return p.rows(); }),
                               Largest(table, [](const Parameter& p) { return p.columns(); }));
  const int64_t panel = Largest(table, [](const Parameter& p) {
    return PanelBytes(p, p.columns()) / static_cast<int64_t>(sizeof(float));
  });
  staging_floats_ = std::max({kStagingFloats, row, panel * shard_.size});
  staging_ = take(staging_floats_);
  const Parameter& head = table.at(table.head());
  const int64_t chunks = (head.rows() + kernels::kRowSumChunk - 1) / kernels::kRowSumChunk;
  statistics_ = take(chunks * limits_.max_head_rows * kernels::kHeadStatistics);
  target_logits_ = take(limits_.max_head_rows);
  return used;
}

StatusOr<std::unique_ptr<TensorParallel>> TensorParallel::Create(const Decoder& decoder,
                                                                 Ranks& ranks,
                                                                 const Workspace::Limits& limits) {
  const TensorShard shard = decoder.shard();
  if (ranks.size() != shard.size || ranks.rank() != shard.rank) {
    return InvalidArgument("tensor parallel: the decoder is part " + std::to_string(shard.rank) +
                           " of " + std::to_string(shard.size) + ", the group has rank " +
                           std::to_string(ranks.rank()) + " of " + std::to_string(ranks.size()));
  }
  std::unique_ptr<TensorParallel> tensor(new TensorParallel(decoder, ranks, limits));
  TITAN_ASSIGN_OR_RETURN(tensor->memory_, AllocateFloats(tensor->Plan(decoder, nullptr)));
  tensor->Plan(decoder, tensor->memory_.get());
  return tensor;
}

void TensorParallel::Gather(std::span<const std::span<std::byte>> parts) {
  if (status_.ok()) status_ = ranks_.AllGather(parts);
}

void TensorParallel::Share(int root, std::span<std::byte> data) {
  if (status_.ok()) status_ = ranks_.Broadcast(root, data);
}

kernels::ConstPanels TensorParallel::ColumnsOf(int parameter) const {
  const std::byte* columns = columns_[static_cast<size_t>(parameter)];
  TITAN_CHECK(columns != nullptr);
  return {columns, decoder_.table().at(parameter).element};
}

void TensorParallel::RefreshColumns(const void* slot) {
  TITAN_CHECK(limits_.backward);
  const ParameterTable& table = decoder_.table();
  for (int i = 0; i < table.size(); ++i) {
    std::byte* columns = columns_[static_cast<size_t>(i)];
    if (columns == nullptr) continue;
    const Parameter& p = table.at(i);
    const Slice own = OwnedColumns(p, shard_);
    const int64_t panel = PanelBytes(p, p.columns());
    const int64_t before = PanelBytes(p, own.begin), kept = PanelBytes(p, own.size());
    const auto* held = static_cast<const std::byte*>(slot) + p.offset;
    // Rounds of as many panels of each rank as fit.
    const int64_t room = staging_floats_ * static_cast<int64_t>(sizeof(float)) / shard_.size;
    const int64_t per_round = room / panel;
    int64_t rounds = 0;
    for (int r = 0; r < shard_.size; ++r) {
      const int64_t panels = kernels::PanelCount(OwnedRows(p, Of(r)).size());
      rounds = std::max(rounds, (panels + per_round - 1) / per_round);
    }
    std::vector<std::span<std::byte>> parts(static_cast<size_t>(shard_.size));
    for (int64_t round = 0; round < rounds; ++round) {
      for (int r = 0; r < shard_.size; ++r) {
        const int64_t panels = kernels::PanelCount(OwnedRows(p, Of(r)).size());
        const int64_t count = std::clamp<int64_t>(panels - round * per_round, 0, per_round);
        parts[static_cast<size_t>(r)] = {Bytes(staging_) + r * per_round * panel,
                                         static_cast<size_t>(count * panel)};
      }
      const std::span<std::byte> mine = parts[static_cast<size_t>(shard_.rank)];
      if (!mine.empty()) std::memcpy(mine.data(), held + round * per_round * panel, mine.size());
      Gather(parts);
      for (int r = 0; r < shard_.size; ++r) {
        const std::span<std::byte> part = parts[static_cast<size_t>(r)];
        const int64_t first = OwnedRows(p, Of(r)).begin / kernels::kPanelColumns;
        for (int64_t j = 0; j < static_cast<int64_t>(part.size()) / panel && kept > 0; ++j) {
          std::memcpy(columns + (first + round * per_round + j) * kept,
                      part.data() + j * panel + before, static_cast<size_t>(kept));
        }
      }
    }
  }
}

void TensorParallel::GatherColumns(const std::function<Slice(TensorShard)>& of, int64_t rows,
                                   int64_t width, float* array) {
  const int64_t rows_a_round = std::max<int64_t>(1, staging_floats_ / width);
  std::vector<std::span<std::byte>> parts(static_cast<size_t>(shard_.size));
  for (int64_t first = 0; first < rows; first += rows_a_round) {
    const int64_t count = std::min(rows_a_round, rows - first);
    const auto copy = [&](int r, bool out) {
      const Slice columns = of(Of(r));
      const auto bytes = static_cast<size_t>(columns.size()) * sizeof(float);
      for (int64_t i = 0; i < count && bytes > 0; ++i) {
        float* there = staging_ + columns.begin * count + i * columns.size();
        float* here = array + (first + i) * width + columns.begin;
        std::memcpy(out ? there : here, out ? here : there, bytes);
      }
    };
    for (int r = 0; r < shard_.size; ++r) {
      const Slice columns = of(Of(r));
      parts[static_cast<size_t>(r)] = {Bytes(staging_ + columns.begin * count),
                                       static_cast<size_t>(columns.size() * count) * sizeof(float)};
    }
    copy(shard_.rank, true);
    Gather(parts);
    for (int r = 0; r < shard_.size; ++r) {
      if (r != shard_.rank) copy(r, false);
    }
  }
}

void TensorParallel::GatherRows(std::span<const int32_t> owner, int64_t width, float* x) {
  const auto rows = static_cast<int64_t>(owner.size());
  const int64_t rows_a_round = std::max<int64_t>(1, staging_floats_ / width);
  const size_t row_bytes = static_cast<size_t>(width) * sizeof(float);
  std::vector<std::span<std::byte>> parts(static_cast<size_t>(shard_.size));
  for (int64_t first = 0; first < rows; first += rows_a_round) {
    const int64_t count = std::min(rows_a_round, rows - first);
    // Rows of one owner lie together, in order.
    const auto visit = [&](int r, const auto& body) {
      for (int64_t i = first; i < first + count; ++i) {
        if (owner[static_cast<size_t>(i)] == r) body(x + i * width);
      }
    };
    std::byte* at = Bytes(staging_);
    for (int r = 0; r < shard_.size; ++r) {
      std::byte* begin = at;
      visit(r, [&](float* row) {
        if (r == shard_.rank) std::memcpy(at, row, row_bytes);
        at += row_bytes;
      });
      parts[static_cast<size_t>(r)] = {begin, at};
    }
    Gather(parts);
    for (int r = 0; r < shard_.size; ++r) {
      const std::byte* from = parts[static_cast<size_t>(r)].data();
      if (r == shard_.rank) continue;
      visit(r, [&](float* row) {
        std::memcpy(row, from, row_bytes);
        from += row_bytes;
      });
    }
  }
}

Status TensorParallel::Agree(const Status& own) {
  std::vector<uint8_t> failed(static_cast<size_t>(shard_.size));
  failed[static_cast<size_t>(shard_.rank)] = own.ok() ? 0 : 1;
  std::vector<std::span<std::byte>> parts;
  for (uint8_t& flag : failed) parts.push_back(std::as_writable_bytes(std::span(&flag, 1)));
  Gather(parts);
  TITAN_RETURN_IF_ERROR(own);
  TITAN_RETURN_IF_ERROR(status_);
  for (size_t r = 0; r < failed.size(); ++r) {
    if (failed[r] != 0) {
      return DataLoss("tensor-parallel rank " + std::to_string(r) +
                      " found a value that is not a finite number; its own error names it");
    }
  }
  return OkStatus();
}

void TensorParallel::GatherSlot(const void* slot, void* whole) {
  const ParameterTable& own = decoder_.table();
  const ParameterTable& all = decoder_.whole_table();
  auto* out = static_cast<std::byte*>(whole);
  const int64_t room = staging_floats_ * static_cast<int64_t>(sizeof(float)) / shard_.size;
  std::vector<std::span<std::byte>> parts(static_cast<size_t>(shard_.size));
  for (int i = 0; i < own.size(); ++i) {
    const Parameter& p = own.at(i);
    const auto* held = static_cast<const std::byte*>(slot) + p.offset;
    const Parameter& to = all.at(i);
    if (out != nullptr) {
      const int64_t end = i + 1 < all.size() ? all.at(i + 1).offset : all.slot_bytes();
      std::memset(out + to.offset + to.bytes, 0, static_cast<size_t>(end - to.offset - to.bytes));
    }
    if (p.owned_step == 0) {
      if (out != nullptr) std::memcpy(out + to.offset, held, static_cast<size_t>(p.bytes));
      continue;
    }
    const int64_t panel = PanelBytes(p, p.columns());
    const auto bytes_of = [&](int r) {
      return kernels::PanelCount(OwnedRows(p, Of(r)).size()) * panel;
    };
    int64_t longest = 0;
    for (int r = 0; r < shard_.size; ++r) longest = std::max(longest, bytes_of(r));
    for (int64_t done = 0; done < longest; done += room) {
      for (int r = 0; r < shard_.size; ++r) {
        const int64_t bytes = std::clamp<int64_t>(bytes_of(r) - done, 0, room);
        parts[static_cast<size_t>(r)] = {Bytes(staging_) + r * room, static_cast<size_t>(bytes)};
      }
      const std::span<std::byte> mine = parts[static_cast<size_t>(shard_.rank)];
      if (!mine.empty()) std::memcpy(mine.data(), held + done, mine.size());
      Gather(parts);
      if (out == nullptr) continue;
      for (int r = 0; r < shard_.size; ++r) {
        const std::span<std::byte> part = parts[static_cast<size_t>(r)];
        const int64_t first = OwnedRows(p, Of(r)).begin / kernels::kPanelColumns * panel;
        if (part.empty()) continue;
        std::memcpy(out + to.offset + first + done, part.data(), part.size());
      }
    }
  }
}

}  // namespace titan::model
