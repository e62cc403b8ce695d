// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/manifest.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "core/base/hash.h"

namespace titan::weightstore {
namespace {

constexpr uint64_t kOffsetAlignment = 64;
constexpr uint64_t kPanelLanes = 32;
constexpr uint64_t kMaxBytes = uint64_t{1} << 60;
constexpr size_t kMaxTensors = 1u << 20;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxText = 1u << 20;
constexpr size_t kMaxItems = 4096;
// 2 has the numerics mode, which is f32 in 1; 3 has the bundle, 4 the contract's items, which there
// are none of before.
constexpr uint8_t kEncoding = 4;

// a * b, or 0 for more than kMaxBytes (a and b are not 0).
uint64_t Product(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxBytes) return 0;
  return product;
}

Status ValidateTensor(const TensorEntry& tensor, uint64_t slot_bytes) {
  const std::string where = "manifest.tensors[" + tensor.name + "]";
  if (tensor.name.empty() || tensor.name.size() > 512) {
    return InvalidArgument("manifest.tensors: a name must have 1 to 512 bytes");
  }
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBf16) {
    return InvalidArgument(where + ".dtype: must be f32, f16 or bf16");
  }
  if (tensor.shape.size() > kMaxRank) {
    return InvalidArgument(where + ".shape: at most 8 dimensions");
  }
  uint64_t elements = 1;
  for (const int64_t dimension : tensor.shape) {
    if (dimension < 1) return InvalidArgument(where + ".shape: dimensions must be at least 1");
    elements = Product(elements, static_cast<uint64_t>(dimension));
    if (elements == 0) return InvalidArgument(where + ".shape: more than 2^60 elements");
  }
  switch (tensor.layout) {
    case Layout::kRows:
      break;
    case Layout::kPanels32:
    case Layout::kPanels32K2: {
      const bool pairs = tensor.layout == Layout::kPanels32K2;
      const DType held = pairs ? DType::kBf16 : DType::kF32;
      if (tensor.shape.size() != 2 || tensor.dtype != held) {
        return InvalidArgument(where + ".layout: " + std::string(NameOf(tensor.layout)) +
                               " holds matrices of " + std::string(NameOf(held)));
      }
      const uint64_t panels =
          (static_cast<uint64_t>(tensor.shape[0]) + kPanelLanes - 1) / kPanelLanes;
      uint64_t depth = static_cast<uint64_t>(tensor.shape[1]);
      if (pairs) depth += depth % 2;
      elements = Product(Product(panels, kPanelLanes), depth);
      if (elements == 0) return InvalidArgument(where + ".shape: more than 2^60 elements");
      break;
    }
    default:
      return InvalidArgument(where + ".layout: must be rows, panels32 or panels32k2");
  }
  const uint64_t bytes = Product(elements, static_cast<uint64_t>(ElementBytes(tensor.dtype)));
  if (bytes == 0 || tensor.num_bytes != bytes) {
    return InvalidArgument(where + ".num_bytes: is " + std::to_string(tensor.num_bytes) +
                           ", shape, dtype and layout need " + std::to_string(bytes));
  }
  if (tensor.offset % kOffsetAlignment != 0) {
    return InvalidArgument(where + ".offset: must be a multiple of 64");
  }
  if (tensor.offset > slot_bytes || bytes > slot_bytes - tensor.offset) {
    return InvalidArgument(where + ".offset: the tensor ends outside the slot of " +
                           std::to_string(slot_bytes) + " bytes");
  }
  return OkStatus();
}

class Writer {
 public:
  template <typename Int>
  void Number(Int value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    out_.append(bytes, sizeof(value));
  }
  void Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    out_.append(text);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <typename Int>
  bool Number(Int* value) {
    if (rest_.size() < sizeof(*value)) return false;
    std::memcpy(value, rest_.data(), sizeof(*value));
    rest_.remove_prefix(sizeof(*value));
    return true;
  }
  bool Text(std::string* text) {
    uint32_t size;
    if (!Number(&size) || size > rest_.size()) return false;
    text->assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return true;
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

bool DecodeTensor(Reader& reader, TensorEntry* tensor) {
  uint8_t dtype, layout, rank;
  if (!reader.Text(&tensor->name) || !reader.Number(&dtype) || !reader.Number(&layout) ||
      !reader.Number(&tensor->offset) || !reader.Number(&tensor->num_bytes) ||
      !reader.Number(&rank)) {
    return false;
  }
  tensor->dtype = static_cast<DType>(dtype);
  tensor->layout = static_cast<Layout>(layout);
  tensor->shape.resize(rank);
  for (int64_t& dimension : tensor->shape) {
    if (!reader.Number(&dimension)) return false;
  }
  return true;
}

}  // namespace

int ElementBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
  }
  return "unknown";
}

std::string_view NameOf(Layout layout) {
  switch (layout) {
    case Layout::kRows:
      return "rows";
    case Layout::kPanels32:
      return "panels32";
    case Layout::kPanels32K2:
      return "panels32k2";
  }
  return "unknown";
}

StatusOr<DType> DTypeFromName(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    if (name == NameOf(dtype)) return dtype;
  }
  return InvalidArgument("dtype '" + std::string(name.substr(0, 32)) +
                         "' is not one of f32, f16, bf16");
}

int64_t NumRows(const TensorEntry& tensor) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}

int64_t NumColumns(const TensorEntry& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

Status Validate(const Manifest& manifest) {
  if (manifest.tensors.empty()) return InvalidArgument("manifest.tensors: at least one is needed");
  if (manifest.tensors.size() > kMaxTensors) {
    return InvalidArgument("manifest.tensors: more than 2^20");
  }
  if (manifest.slot_bytes == 0 || manifest.slot_bytes > kMaxBytes) {
    return InvalidArgument("manifest.slot_bytes: must be between 1 and 2^60");
  }
  if (manifest.model_config_json.size() > kMaxText || manifest.contract_forward.size() > 256 ||
      manifest.contract_training.size() > 256) {
    return InvalidArgument(
        "manifest: model_config_json has at most 1 MiB, contract digests 256 bytes");
  }
  if (manifest.numerics_mode.empty() || manifest.numerics_mode.size() > 32) {
    return InvalidArgument("manifest.numerics_mode: must have 1 to 32 bytes");
  }
  if (Hash128 ignored; !manifest.bundle.empty() && !FromHex(manifest.bundle, &ignored)) {
    return InvalidArgument("manifest.bundle: must be 32 lower-case hex digits");
  }
  if (manifest.contract_items.size() > kMaxItems) {
    return InvalidArgument("manifest.contract_items: more than " + std::to_string(kMaxItems));
  }
  for (const ContractItem& item : manifest.contract_items) {
    if (item.name.empty() || item.name.size() > 256 || item.value.size() > 4096) {
      return InvalidArgument(
          "manifest.contract_items: a name has 1 to 256 bytes, a value at most 4096");
    }
  }
  std::vector<const TensorEntry*> by_name, by_offset;
  for (const TensorEntry& tensor : manifest.tensors) {
    TITAN_RETURN_IF_ERROR(ValidateTensor(tensor, manifest.slot_bytes));
    by_name.push_back(&tensor);
    by_offset.push_back(&tensor);
  }
  std::sort(by_name.begin(), by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  std::sort(by_offset.begin(), by_offset.end(),
            [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_name.size(); ++i) {
    if (by_name[i - 1]->name == by_name[i]->name) {
      return InvalidArgument("manifest.tensors[" + by_name[i]->name + "]: the name occurs twice");
    }
    if (by_offset[i - 1]->offset + by_offset[i - 1]->num_bytes > by_offset[i]->offset) {
      return InvalidArgument("manifest.tensors[" + by_offset[i]->name + "].offset: overlaps " +
                             by_offset[i - 1]->name);
    }
  }
  return OkStatus();
}

std::string DifferingItem(const std::vector<ContractItem>& there,
                          const std::vector<ContractItem>& here) {
  if (there.empty() || here.empty()) return "";
  const auto find = [](const std::vector<ContractItem>& items, const std::string& name) {
    return std::find_if(items.begin(), items.end(),
                        [&](const ContractItem& item) { return item.name == name; });
  };
  for (const ContractItem& item : there) {
    const auto other = find(here, item.name);
    if (other == here.end() || other->value == item.value) continue;
    return "item " + item.name + " is " + item.value + " there and " + other->value + " here";
  }
  for (const ContractItem& item : there) {
    if (find(here, item.name) == here.end()) {
      return "item " + item.name + " (" + item.value + ") stands there only";
    }
  }
  for (const ContractItem& item : here) {
    if (find(there, item.name) == there.end()) {
      return "item " + item.name + " (" + item.value + ") stands here only";
    }
  }
  return "";
}

std::string EncodeManifest(const Manifest& manifest) {
  Writer writer;
  writer.Number(kEncoding);
  writer.Number(manifest.slot_bytes);
  writer.Text(manifest.model_config_json);
  writer.Text(manifest.contract_forward);
  writer.Text(manifest.contract_training);
  writer.Text(manifest.numerics_mode);
  writer.Text(manifest.bundle);
  writer.Number(static_cast<uint32_t>(manifest.tensors.size()));
  for (const TensorEntry& tensor : manifest.tensors) {
    TITAN_CHECK(tensor.shape.size() <= kMaxRank);
    writer.Text(tensor.name);
    writer.Number(static_cast<uint8_t>(tensor.dtype));
    writer.Number(static_cast<uint8_t>(tensor.layout));
    writer.Number(tensor.offset);
    writer.Number(tensor.num_bytes);
    writer.Number(static_cast<uint8_t>(tensor.shape.size()));
    for (const int64_t dimension : tensor.shape) writer.Number(dimension);
  }
  writer.Number(static_cast<uint32_t>(manifest.contract_items.size()));
  for (const ContractItem& item : manifest.contract_items) {
    writer.Text(item.name);
    writer.Text(item.value);
  }
  return writer.Take();
}

Hash128 ManifestId(const Manifest& manifest) {
  Manifest named = manifest;
  named.contract_items.clear();
  const std::string bytes = EncodeManifest(named);
  return Hash128Of(bytes.data(), bytes.size(), /*seed=*/0);
}

StatusOr<Manifest> DecodeManifest(std::string_view bytes) {
  Reader reader(bytes);
  Manifest manifest;
  uint8_t encoding;
  uint32_t num_tensors;
  if (!reader.Number(&encoding) || encoding < 1 || encoding > kEncoding ||
      !reader.Number(&manifest.slot_bytes) || !reader.Text(&manifest.model_config_json) ||
      !reader.Text(&manifest.contract_forward) || !reader.Text(&manifest.contract_training) ||
      (encoding >= 2 && !reader.Text(&manifest.numerics_mode)) ||
      (encoding >= 3 && !reader.Text(&manifest.bundle)) || !reader.Number(&num_tensors)) {
    return DataLoss("stored manifest: its head is damaged");
  }
  for (uint32_t i = 0; i < num_tensors; ++i) {
    TensorEntry tensor;
    if (!DecodeTensor(reader, &tensor)) {
      return DataLoss("stored manifest: tensor " + std::to_string(i) + " is damaged");
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  uint32_t num_items = 0;
  bool whole = encoding < 4 || reader.Number(&num_items);
  for (uint32_t i = 0; whole && i < num_items; ++i) {
    ContractItem item;
    whole = reader.Text(&item.name) && reader.Text(&item.value);
    manifest.contract_items.push_back(std::move(item));
  }
  if (!whole) return DataLoss("stored manifest: its contract's items are damaged");
  if (!reader.AtEnd()) return DataLoss("stored manifest: bytes after its end");
  const Status valid = Validate(manifest);
  if (!valid.ok()) return DataLoss("stored manifest: " + MessageOf(valid));
  return manifest;
}

}  // namespace titan::weightstore
