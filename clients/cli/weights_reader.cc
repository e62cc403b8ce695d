// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/weights_reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "clients/cli/found_version.h"
#include "clients/cluster/terminal.h"
#include "core/base/check.h"
#include "core/base/hash_stream.h"
#include "core/formats/convert.h"
#include "core/formats/model_source.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::cli {
namespace {

using weightstore::Layout;
using weightstore::TensorEntry;

TensorHead HeadOf(const TensorEntry& entry) {
  return {entry.name, entry.shape, std::string(weightstore::NameOf(entry.dtype))};
}

// Bytes from the first byte of row `first` to that of row `last`. REQUIRES: first is a multiple of
// kRowStep, and so is last or it is the number of rows.
uint64_t BytesOfRows(const TensorEntry& entry, int64_t first, int64_t last) {
  const TensorHead head = HeadOf(entry);
  const int64_t step = entry.layout == Layout::kRows ? 1 : kRowStep;
  const int64_t steps = (RowsOf(head) + step - 1) / step;
  const uint64_t step_bytes = entry.num_bytes / static_cast<uint64_t>(std::max<int64_t>(steps, 1));
  return static_cast<uint64_t>((last + step - 1) / step - first / step) * step_bytes;
}

// Rows that lie at `data` as in a slot.
void Unpack(kernels::Pool& pool, const TensorEntry& entry, const std::byte* data,
            std::span<float> out) {
  const int64_t columns = ColumnsOf(HeadOf(entry));
  if (entry.layout != Layout::kRows) {
    const auto element =
        entry.layout == Layout::kPanels32 ? kernels::Element::kF32 : kernels::Element::kBf16;
    kernels::UnpackPanels(pool, {data, element}, static_cast<int64_t>(out.size()) / columns,
                          columns, out.data());
    return;
  }
  const auto type = entry.dtype == weightstore::DType::kF32   ? formats::StoredType::kF32
                    : entry.dtype == weightstore::DType::kF16 ? formats::StoredType::kF16
                                                              : formats::StoredType::kBF16;
  const size_t bytes = out.size() * static_cast<size_t>(weightstore::ElementBytes(entry.dtype));
  formats::ConvertToF32(type, {reinterpret_cast<const uint8_t*>(data), bytes}, out);
}

// A version in the store's memory.
class MappedReader final : public WeightsReader {
 public:
  MappedReader(FoundVersion found, weightstore::HeldVersion slot)
      : found_(std::move(found)), title_(found_.title()), slot_(std::move(slot)) {
    for (const TensorEntry& entry : slot_.manifest().tensors) tensors_.push_back(HeadOf(entry));
  }

  const std::string& title() const override { return title_; }
  const std::vector<TensorHead>& tensors() const override { return tensors_; }
  Status Read(size_t tensor, int64_t first, std::span<float> out) override {
    const TensorEntry& entry = slot_.manifest().tensors[tensor];
    Unpack(pool_, entry, slot_.bytes().data() + entry.offset + BytesOfRows(entry, 0, first), out);
    return OkStatus();
  }
  Status Finish(size_t) override {
    if (slot_.HeaderUnchanged()) return OkStatus();
    return Aborted(title_ + " was taken back while it was read; try a newer one");
  }
  std::string BlobOf(size_t) const override { return ""; }

 private:
  const FoundVersion found_;
  const std::string title_;
  const weightstore::HeldVersion slot_;
  std::vector<TensorHead> tensors_;
  kernels::Pool pool_{1};
};

// A model or kept version on the store's disk.
class StoredReader final : public WeightsReader {
 public:
  explicit StoredReader(FoundVersion found) : found_(std::move(found)), title_(found_.title()) {
    for (const TensorEntry& entry : found_.stored->manifest->tensors) {
      tensors_.push_back(HeadOf(entry));
    }
  }

  const std::string& title() const override { return title_; }
  const std::vector<TensorHead>& tensors() const override { return tensors_; }
  Status Read(size_t tensor, int64_t first, std::span<float> out) override {
    const TensorEntry& entry = found_.stored->manifest->tensors[tensor];
    const uint64_t begin = BytesOfRows(entry, 0, first);
    if (begin == 0) read_.Reset();
    const int64_t rows = static_cast<int64_t>(out.size()) / ColumnsOf(tensors_[tensor]);
    const uint64_t num_bytes = BytesOfRows(entry, first, first + rows);
    // Kernels move whole floats.
    block_.resize((num_bytes + sizeof(float) - 1) / sizeof(float));
    auto* bytes = reinterpret_cast<std::byte*>(block_.data());
    const Hash128& blob = found_.stored->blobs[tensor];
    for (uint64_t done = 0; done < num_bytes;) {
      const auto part = found_.store->ReadBlobPart(blob, begin + done, num_bytes - done);
      if (!part.ok()) return Annotate(part.status(), Where(tensor));
      if (part->empty() || part->size() > num_bytes - done) {
        return DataLoss(Where(tensor) + ": blob " + ToHex(blob) +
                        " of the weight store is damaged: it has not the " +
                        std::to_string(entry.num_bytes) + " bytes that were stored");
      }
      std::memcpy(bytes + done, part->data(), part->size());
      done += part->size();
    }
    read_.Add(bytes, num_bytes);
    Unpack(pool_, entry, bytes, out);
    return OkStatus();
  }
  Status Finish(size_t tensor) override {
    const Hash128& blob = found_.stored->blobs[tensor];
    if (read_.Digest() == blob) return OkStatus();
    return DataLoss(Where(tensor) + ": blob " + ToHex(blob) +
                    " of the weight store is damaged: its bytes have digest " +
                    ToHex(read_.Digest()));
  }
  std::string BlobOf(size_t tensor) const override { return ToHex(found_.stored->blobs[tensor]); }

 private:
  std::string Where(size_t tensor) const { return title_ + ": tensor " + tensors_[tensor].name; }

  const FoundVersion found_;
  const std::string title_;
  std::vector<TensorHead> tensors_;
  std::vector<float> block_;
  Hash128Stream read_;  // of the tensor so far
  kernels::Pool pool_{1};
};

// Model files, as import reads them: f32.
class FileReader final : public WeightsReader {
 public:
  explicit FileReader(std::unique_ptr<formats::ModelSource> source) : source_(std::move(source)) {
    for (const formats::TensorSpec& tensor : source_->tensors()) {
      tensors_.push_back({tensor.name, tensor.shape, "f32"});
    }
  }

  const std::string& title() const override { return source_->path(); }
  const std::vector<TensorHead>& tensors() const override { return tensors_; }
  Status Read(size_t tensor, int64_t first, std::span<float> out) override {
    const TensorHead& head = tensors_[tensor];
    if (first == 0) {
      values_.resize(static_cast<size_t>(head.num_elements()));
      TITAN_RETURN_IF_ERROR(source_->ReadTensorF32(head.name, values_));
    }
    const size_t begin = static_cast<size_t>(first * ColumnsOf(head));
    std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    return OkStatus();
  }
  Status Finish(size_t) override { return OkStatus(); }
  std::string BlobOf(size_t) const override { return ""; }

 private:
  const std::unique_ptr<formats::ModelSource> source_;
  std::vector<TensorHead> tensors_;
  std::vector<float> values_;  // of the tensor that is read
};

bool IsPath(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".gguf");
}

}  // namespace

int64_t RowsOf(const TensorHead& head) { return head.shape.empty() ? 1 : head.shape[0]; }

int64_t ColumnsOf(const TensorHead& head) {
  int64_t columns = 1;
  for (size_t i = 1; i < head.shape.size(); ++i) columns *= head.shape[i];
  return columns;
}

StatusOr<std::unique_ptr<WeightsReader>> OpenWeights(const Common& common,
                                                     const std::string& text) {
  if (IsPath(text)) {
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<formats::ModelSource> source,
                           formats::OpenModelSource(text));
    return std::unique_ptr<WeightsReader>(std::make_unique<FileReader>(std::move(source)));
  }
  StatusOr<FoundVersion> found = FindVersion(common, text);
  if (!found.ok()) {
    std::error_code ignored;
    if (!std::filesystem::exists(text, ignored)) return found.status();
    return MakeStatus(found.status().code(), MessageOf(found.status()) +
                                                 "; the file or folder of that name is " +
                                                 cluster::ShellWord("./" + text));
  }
  if (found->stored.has_value()) {
    return std::unique_ptr<WeightsReader>(std::make_unique<StoredReader>(*std::move(found)));
  }
  TITAN_ASSIGN_OR_RETURN(weightstore::HeldVersion slot,
                         found->store->Map(found->job.run_id(), found->version.version()));
  return std::unique_ptr<WeightsReader>(
      std::make_unique<MappedReader>(*std::move(found), std::move(slot)));
}

}  // namespace titan::cli
