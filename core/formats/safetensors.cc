// SPDX-License-Identifier: Apache-2.0
#include "core/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/formats/json.h"

namespace titan::formats {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxDimension = int64_t{1} << 40;
constexpr size_t kMaxRank = 16;
constexpr char kMetadataKey[] = "__metadata__";

struct Dtype {
  std::string_view name;
  int64_t bits;
  std::optional<StoredType> type;
};

constexpr std::array<Dtype, 17> kDtypes = {{
    {"F32", 32, StoredType::kF32},
    {"F16", 16, StoredType::kF16},
    {"BF16", 16, StoredType::kBF16},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"I32", 32, {}},
    {"U32", 32, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I8", 8, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"C64", 64, {}},
}};

const Dtype* FindDtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

}  // namespace

int64_t SafetensorsTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return count;
}

StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file(std::move(mapped));
  TITAN_RETURN_IF_ERROR(file.Parse());
  return file;
}

Status SafetensorsFile::Error(std::string_view field, std::string_view problem) const {
  return InvalidArgument(fmt::format("{}: {}: {}", path(), field, problem));
}

Status SafetensorsFile::Parse() {
  const std::span<const uint8_t> bytes = file_.bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return Error("header length", fmt::format("the file has only {} bytes", bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t rest = bytes.size() - sizeof(header_bytes);
  if (header_bytes > rest || header_bytes > kMaxHeaderBytes) {
    return Error("header length", fmt::format("{} exceeds the {} bytes that follow or the cap {}",
                                              header_bytes, rest, kMaxHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes),
                              header_bytes);
  if (!text.starts_with('{')) return Error("header", "does not begin with {");
  data_ = bytes.subspan(sizeof(header_bytes) + header_bytes);
  TITAN_ASSIGN_OR_RETURN(const Json header, ParseJson(text, path() + ": header"));
  for (const auto& [name, entry] : header.items()) {
    if (name != kMetadataKey) {
      TITAN_RETURN_IF_ERROR(ParseTensor(name, &entry));
      continue;
    }
    if (!entry.is_object()) return Error(kMetadataKey, "must be an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        return Error(fmt::format("{}.{}", kMetadataKey, key), "must be a string");
      }
      metadata_[key] = value.get<std::string>();
    }
  }
  return CheckCoverage();
}

// json_entry is a Json; the header of this class does not show the JSON library.
Status SafetensorsFile::ParseTensor(const std::string& name, const void* json_entry) {
  const Json& entry = *static_cast<const Json*>(json_entry);
  const std::string field = fmt::format("tensor {}", name);
  if (!entry.is_object()) return Error(field, "must be an object");
  const JsonFields fields(entry, fmt::format("{}: {}", path(), field));
  SafetensorsTensor tensor;
  TITAN_ASSIGN_OR_RETURN(tensor.dtype, fields.String("dtype"));
  const Dtype* dtype = FindDtype(tensor.dtype);
  if (dtype == nullptr) {
    return fields.Refuse("dtype", fmt::format("\"{}\" is not known", tensor.dtype));
  }
  tensor.type = dtype->type;
  const Json& shape = fields.Value("shape");
  if (!shape.is_array() || shape.size() > kMaxRank) {
    return fields.Error("shape", fmt::format("must be an array of at most {} sizes", kMaxRank));
  }
  int64_t size = dtype->bits / 8;
  bool wraps = false;
  for (const Json& n : shape) {
    if (!n.is_number_unsigned() || n > kMaxDimension) {
      return fields.Error("shape", fmt::format("{} is outside [0, 2^40]", n.dump()));
    }
    tensor.shape.push_back(n.get<int64_t>());
    wraps = __builtin_mul_overflow(size, tensor.shape.back(), &size) || wraps;
  }
  if (wraps) return fields.Error("shape", "its size in bytes exceeds 2^63");
  const Json& offsets = fields.Value("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return fields.Error("data_offsets", "must be [begin, end]");
  }
  const uint64_t begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_.size()) {
    return fields.Error("data_offsets", fmt::format("[{}, {}] does not lie in the {} bytes of data",
                                                    begin, end, data_.size()));
  }
  if (end - begin != static_cast<uint64_t>(size)) {
    return fields.Error("data_offsets",
                        fmt::format("holds {} bytes, dtype and shape need {}", end - begin, size));
  }
  tensor.bytes = data_.subspan(begin, end - begin);
  tensors_.emplace(name, std::move(tensor));
  return OkStatus();
}

Status SafetensorsFile::CheckCoverage() const {
  struct Range {
    size_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, tensor] : tensors_) {
    const size_t begin = static_cast<size_t>(tensor.bytes.data() - data_.data());
    ranges.push_back({begin, begin + tensor.bytes.size(), &name});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t at = 0;
  for (const Range& range : ranges) {
    const std::string field = fmt::format("tensor {}: data_offsets", *range.name);
    if (range.begin < at) return Error(field, "overlaps the tensor before it");
    if (range.begin > at) {
      return Error(field, fmt::format("{} bytes before it belong to no tensor", range.begin - at));
    }
    at = range.end;
  }
  if (at != data_.size()) {
    return Error("data", fmt::format("the last {} bytes belong to no tensor", data_.size() - at));
  }
  return OkStatus();
}

Status SafetensorsFile::ConvertTensor(std::string_view name, std::span<float> out) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return NotFound(fmt::format("{}: no tensor {}", path(), name));
  const SafetensorsTensor& tensor = it->second;
  if (!tensor.type.has_value()) {
    return Unimplemented(fmt::format("{}: tensor {}: dtype {} has no conversion (F32, F16, BF16)",
                                     path(), name, tensor.dtype));
  }
  if (out.size() != static_cast<size_t>(tensor.num_elements())) {
    return InvalidArgument(fmt::format("{}: tensor {}: has {} elements, the buffer {}", path(),
                                       name, tensor.num_elements(), out.size()));
  }
  ConvertToF32(*tensor.type, tensor.bytes, out);
  return OkStatus();
}

}  // namespace titan::formats
