// SPDX-License-Identifier: Apache-2.0
#include "core/formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/check.h"

namespace titan::formats {
namespace {

constexpr uint64_t kMaxEntries = 1 << 20;    // keys, tensors
constexpr uint64_t kMaxNameBytes = 1 << 16;  // keys, tensor names
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kMaxDimension = 1ull << 40;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;  // length, type, one byte of value
constexpr uint64_t kMinTensorBytes =
    8 + 4 + 8 + 4 + 8;  // length, rank, one dimension, type, offset

enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// The least bytes of one value; 0: not a type of the format.
uint64_t MinBytesOf(uint32_t type) {
  constexpr std::array<uint64_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

std::optional<StoredType> StoredTypeOf(uint32_t type_id) {
  switch (type_id) {
    case 0:
      return StoredType::kF32;
    case 1:
      return StoredType::kF16;
    case 2:
      return StoredType::kQ4_0;
    case 3:
      return StoredType::kQ4_1;
    case 6:
      return StoredType::kQ5_0;
    case 7:
      return StoredType::kQ5_1;
    case 8:
      return StoredType::kQ8_0;
    case 12:
      return StoredType::kQ4_K;
    case 14:
      return StoredType::kQ6_K;
    case 30:
      return StoredType::kBF16;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string GgufTypeName(uint32_t type_id) {
  constexpr std::array<std::string_view, 40> kNames = {
      "F32",     "F16",    "Q4_0",    "Q4_1",  "Q4_2",   "Q4_3",  "Q5_0",  "Q5_1",
      "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
      "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
      "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16",  "",
      "",        "",       "TQ1_0",   "TQ2_0", "",       "",      "",      "MXFP4"};
  if (type_id < kNames.size() && !kNames[type_id].empty()) return std::string(kNames[type_id]);
  return fmt::format("type {}", type_id);
}

int64_t GgufTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return count;
}

// Reads the mapping from front to back; the only code that moves a position through outside bytes.
class GgufParser {
 public:
  explicit GgufParser(GgufFile* out) : out_(*out), bytes_(out->file_.bytes()) {}

  Status Parse() {
    TITAN_RETURN_IF_ERROR(ParseHeader());
    for (uint64_t i = 0; i < num_keys_; ++i) TITAN_RETURN_IF_ERROR(ParseKey(i));
    TITAN_RETURN_IF_ERROR(ParseAlignment());
    for (uint64_t i = 0; i < num_tensors_; ++i) TITAN_RETURN_IF_ERROR(ParseTensor(i));
    return PlaceTensors();
  }

 private:
  uint64_t remaining() const { return bytes_.size() - at_; }

  Status Error(std::string_view field, std::string_view problem) const {
    return InvalidArgument(fmt::format("{}: {}: {}", out_.path(), field, problem));
  }

  template <typename T>
  StatusOr<T> Read(std::string_view field) {
    if (remaining() < sizeof(T)) return Error(field, "the file ends inside it");
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  StatusOr<std::string_view> ReadString(std::string_view field, uint64_t max_bytes) {
    TITAN_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(field));
    if (length > remaining()) {
      return Error(field,
                   fmt::format("length {} exceeds the {} bytes that remain", length, remaining()));
    }
    if (length > max_bytes) {
      return Error(field, fmt::format("length {} is above {}", length, max_bytes));
    }
    const std::string_view value(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    at_ += length;
    return value;
  }

  Status ParseHeader() {
    TITAN_ASSIGN_OR_RETURN(const uint32_t magic, Read<uint32_t>("magic"));
    if (magic != 0x46554747u) return Error("magic", "is not \"GGUF\"");
    TITAN_ASSIGN_OR_RETURN(out_.version_, Read<uint32_t>("version"));
    if (out_.version_ != 2 && out_.version_ != 3) {
      const bool swapped = (out_.version_ & 0xffff) == 0;
      return Unimplemented(
          fmt::format("{}: version: {} is not covered (2 and 3, little end first{})", out_.path(),
                      out_.version_, swapped ? "; this file has the other byte order" : ""));
    }
    TITAN_ASSIGN_OR_RETURN(num_tensors_, ReadCount("tensor count", kMinTensorBytes));
    TITAN_ASSIGN_OR_RETURN(num_keys_, ReadCount("key count", kMinKeyBytes));
    return OkStatus();
  }

  StatusOr<uint64_t> ReadCount(std::string_view field, uint64_t min_bytes_each) {
    TITAN_ASSIGN_OR_RETURN(const uint64_t count, Read<uint64_t>(field));
    if (count > kMaxEntries || count > remaining() / min_bytes_each) {
      return Error(field, fmt::format("{} cannot fit in the {} bytes that remain (at most {})",
                                      count, remaining(), kMaxEntries));
    }
    return count;
  }

  Status ParseKey(uint64_t index) {
    TITAN_ASSIGN_OR_RETURN(const std::string_view key,
                           ReadString(fmt::format("key {}: key length", index), kMaxNameBytes));
    const std::string field = fmt::format("key {}", key);
    TITAN_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(field));
    if (type == kArray) {
      TITAN_ASSIGN_OR_RETURN(GgufValue value, ReadArray(field));
      return AddKey(key, std::move(value));
    }
    TITAN_ASSIGN_OR_RETURN(GgufValue value, ReadScalar(field, type));
    return AddKey(key, std::move(value));
  }

  Status AddKey(std::string_view key, GgufValue value) {
    if (!out_.metadata_.emplace(std::string(key), std::move(value)).second) {
      return Error(fmt::format("key {}", key), "stands twice");
    }
    return OkStatus();
  }

  template <typename Stored, typename Wide>
  StatusOr<GgufValue> ReadAs(std::string_view field) {
    TITAN_ASSIGN_OR_RETURN(const Stored value, Read<Stored>(field));
    return GgufValue(static_cast<Wide>(value));
  }

  StatusOr<GgufValue> ReadScalar(std::string_view field, uint32_t type) {
    switch (type) {
      case kUint8:
        return ReadAs<uint8_t, uint64_t>(field);
      case kInt8:
        return ReadAs<int8_t, int64_t>(field);
      case kUint16:
        return ReadAs<uint16_t, uint64_t>(field);
      case kInt16:
        return ReadAs<int16_t, int64_t>(field);
      case kUint32:
        return ReadAs<uint32_t, uint64_t>(field);
      case kInt32:
        return ReadAs<int32_t, int64_t>(field);
      case kUint64:
        return ReadAs<uint64_t, uint64_t>(field);
      case kInt64:
        return ReadAs<int64_t, int64_t>(field);
      case kFloat32:
        return ReadAs<float, double>(field);
      case kFloat64:
        return ReadAs<double, double>(field);
      case kBool: {
        TITAN_ASSIGN_OR_RETURN(const uint8_t value, Read<uint8_t>(field));
        if (value > 1) return Error(field, fmt::format("{} is not a bool (0 or 1)", value));
        return GgufValue(value == 1);
      }
      case kString: {
        TITAN_ASSIGN_OR_RETURN(const std::string_view value, ReadString(field, UINT64_MAX));
        return GgufValue(value);
      }
      default:
        return Error(field, fmt::format("value type {} does not exist", type));
    }
  }

  template <typename Stored, typename Wide>
  StatusOr<GgufValue> ReadArrayAs(std::string_view field, uint64_t count) {
    std::vector<Wide> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      TITAN_ASSIGN_OR_RETURN(const Stored value, Read<Stored>(field));
      values.push_back(static_cast<Wide>(value));
    }
    return GgufValue(std::move(values));
  }

  StatusOr<GgufValue> ReadArray(const std::string& field) {
    TITAN_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(field));
    TITAN_ASSIGN_OR_RETURN(const uint64_t count, Read<uint64_t>(field));
    if (type == kArray) {
      return Unimplemented(
          fmt::format("{}: {}: arrays of arrays are not covered", out_.path(), field));
    }
    const uint64_t min_bytes = MinBytesOf(type);
    if (min_bytes == 0) return Error(field, fmt::format("value type {} does not exist", type));
    if (count > remaining() / min_bytes) {
      return Error(field, fmt::format("array length {} cannot fit in the {} bytes that remain",
                                      count, remaining()));
    }
    switch (type) {
      case kUint8:
        return ReadArrayAs<uint8_t, uint64_t>(field, count);
      case kInt8:
        return ReadArrayAs<int8_t, int64_t>(field, count);
      case kUint16:
        return ReadArrayAs<uint16_t, uint64_t>(field, count);
      case kInt16:
        return ReadArrayAs<int16_t, int64_t>(field, count);
      case kUint32:
        return ReadArrayAs<uint32_t, uint64_t>(field, count);
      case kInt32:
        return ReadArrayAs<int32_t, int64_t>(field, count);
      case kUint64:
        return ReadArrayAs<uint64_t, uint64_t>(field, count);
      case kInt64:
        return ReadArrayAs<int64_t, int64_t>(field, count);
      case kFloat32:
        return ReadArrayAs<float, double>(field, count);
      case kFloat64:
        return ReadArrayAs<double, double>(field, count);
      case kBool:
        return ReadBools(field, count);
      default:
        return ReadStrings(field, count);
    }
  }

  StatusOr<GgufValue> ReadBools(const std::string& field, uint64_t count) {
    std::vector<bool> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      TITAN_ASSIGN_OR_RETURN(const uint8_t value, Read<uint8_t>(field));
      if (value > 1) return Error(field, fmt::format("{} is not a bool (0 or 1)", value));
      values.push_back(value == 1);
    }
    return GgufValue(std::move(values));
  }

  StatusOr<GgufValue> ReadStrings(const std::string& field, uint64_t count) {
    GgufStrings values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      TITAN_ASSIGN_OR_RETURN(const std::string_view value, ReadString(field, UINT64_MAX));
      values.push_back(value);
    }
    return GgufValue(std::move(values));
  }

  Status ParseAlignment() {
    TITAN_ASSIGN_OR_RETURN(const int64_t alignment,
                           out_.IntOr("general.alignment", 8, kMaxAlignment, 32));
    if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return Error("key general.alignment", fmt::format("{} is not a power of two", alignment));
    }
    alignment_ = static_cast<uint64_t>(alignment);
    return OkStatus();
  }

  Status ParseTensor(uint64_t index) {
    GgufTensor tensor;
    TITAN_ASSIGN_OR_RETURN(const std::string_view name,
                           ReadString(fmt::format("tensor {}: name length", index), kMaxNameBytes));
    tensor.name = std::string(name);
    const std::string field = fmt::format("tensor {}", name);
    TITAN_ASSIGN_OR_RETURN(const uint32_t rank, Read<uint32_t>(field));
    if (rank < 1 || rank > kMaxRank) {
      return Error(field, fmt::format("rank {} is outside [1, {}]", rank, kMaxRank));
    }
    for (uint32_t d = 0; d < rank; ++d) {
      TITAN_ASSIGN_OR_RETURN(const uint64_t size, Read<uint64_t>(field));
      if (size < 1 || size > kMaxDimension) {
        return Error(field, fmt::format("dimension {} is {}, outside [1, 2^40]", d, size));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    TITAN_ASSIGN_OR_RETURN(tensor.type_id, Read<uint32_t>(field));
    tensor.type = StoredTypeOf(tensor.type_id);
    TITAN_ASSIGN_OR_RETURN(tensor.offset, Read<uint64_t>(field));
    if (!out_.tensor_index_.emplace(tensor.name, out_.tensors_.size()).second) {
      return Error(field, "stands twice");
    }
    out_.tensors_.push_back(std::move(tensor));
    return OkStatus();
  }

  // Bytes of a tensor of a convertible type.
  StatusOr<uint64_t> SizeOf(const GgufTensor& tensor) const {
    const BlockShape block = BlockShapeOf(*tensor.type);
    if (tensor.shape.back() % block.elements != 0) {
      return Error(fmt::format("tensor {}", tensor.name),
                   fmt::format("row of {} is not a multiple of the block {} of {}",
                               tensor.shape.back(), block.elements, GgufTypeName(tensor.type_id)));
    }
    int64_t bytes = tensor.shape.back() / block.elements;
    bool wraps = __builtin_mul_overflow(bytes, block.bytes, &bytes);
    for (size_t d = 0; d + 1 < tensor.shape.size(); ++d) {
      wraps = wraps || __builtin_mul_overflow(bytes, tensor.shape[d], &bytes);
    }
    if (wraps) {
      return Error(fmt::format("tensor {}", tensor.name), "its size in bytes exceeds 2^63");
    }
    return static_cast<uint64_t>(bytes);
  }

  Status PlaceTensors() {
    const uint64_t padding = (alignment_ - at_ % alignment_) % alignment_;
    const uint64_t data_begin = std::min<uint64_t>(at_ + padding, bytes_.size());
    const uint64_t data_bytes = bytes_.size() - data_begin;
    std::vector<std::pair<uint64_t, const GgufTensor*>> order;
    for (GgufTensor& tensor : out_.tensors_) {
      const std::string field = fmt::format("tensor {}", tensor.name);
      if (tensor.offset % alignment_ != 0) {
        return Error(field, fmt::format("offset {} is not a multiple of general.alignment {}",
                                        tensor.offset, alignment_));
      }
      uint64_t size = 0;
      if (tensor.type.has_value()) {
        TITAN_ASSIGN_OR_RETURN(size, SizeOf(tensor));
      }
      if (tensor.offset > data_bytes || size > data_bytes - tensor.offset) {
        return Error(field, fmt::format("offset {} and size {} exceed the {} bytes of data",
                                        tensor.offset, size, data_bytes));
      }
      tensor.offset += data_begin;
      tensor.bytes = bytes_.subspan(tensor.offset, size);
      order.emplace_back(tensor.offset, &tensor);
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = *order[i - 1].second;
      if (before.offset + before.bytes.size() > order[i].first || before.offset == order[i].first) {
        return Error(fmt::format("tensor {}", order[i].second->name),
                     fmt::format("overlaps tensor {}", before.name));
      }
    }
    return OkStatus();
  }

  GgufFile& out_;
  std::span<const uint8_t> bytes_;
  uint64_t at_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t num_keys_ = 0;
  uint64_t alignment_ = 32;
};

StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  GgufFile file(std::move(mapped));
  TITAN_RETURN_IF_ERROR(GgufParser(&file).Parse());
  return file;
}

Status GgufFile::KeyError(std::string_view key, std::string_view problem) const {
  return InvalidArgument(fmt::format("{}: key {}: {}", path(), key, problem));
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

StatusOr<int64_t> GgufFile::Int(std::string_view key, int64_t low, int64_t high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return KeyError(key, "is missing");
  int64_t number = 0;
  if (const auto* narrow = std::get_if<int64_t>(value)) {
    number = *narrow;
  } else if (const auto* wide = std::get_if<uint64_t>(value)) {
    number = static_cast<int64_t>(std::min<uint64_t>(*wide, INT64_MAX));
  } else {
    return KeyError(key, "must be an integer");
  }
  if (number < low || number > high) {
    return KeyError(key, fmt::format("{} is outside [{}, {}]", number, low, high));
  }
  return number;
}

StatusOr<int64_t> GgufFile::IntOr(std::string_view key, int64_t low, int64_t high,
                                  int64_t missing) const {
  return HasKey(key) ? Int(key, low, high) : missing;
}

StatusOr<double> GgufFile::Number(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return KeyError(key, "is missing");
  const auto* number = std::get_if<double>(value);
  if (number == nullptr) return KeyError(key, "must be a float");
  if (!std::isfinite(*number)) return KeyError(key, "must be finite");
  return *number;
}

StatusOr<bool> GgufFile::BoolOr(std::string_view key, bool missing) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return missing;
  const auto* flag = std::get_if<bool>(value);
  if (flag == nullptr) return KeyError(key, "must be a bool");
  return *flag;
}

StatusOr<std::string> GgufFile::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return KeyError(key, "is missing");
  const auto* text = std::get_if<std::string_view>(value);
  if (text == nullptr) return KeyError(key, "must be a string");
  return std::string(*text);
}

StatusOr<std::string> GgufFile::StringOr(std::string_view key, std::string_view missing) const {
  return HasKey(key) ? String(key) : std::string(missing);
}

StatusOr<std::vector<std::string>> GgufFile::Strings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return KeyError(key, "is missing");
  const auto* texts = std::get_if<GgufStrings>(value);
  if (texts == nullptr) return KeyError(key, "must be an array of strings");
  return std::vector<std::string>(texts->begin(), texts->end());
}

StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return KeyError(key, "is missing");
  const auto* numbers = std::get_if<std::vector<double>>(value);
  if (numbers == nullptr) return KeyError(key, "must be an array of floats");
  std::vector<float> out;
  out.reserve(numbers->size());
  for (const double number : *numbers) {
    if (!(std::abs(number) <= FLT_MAX)) return KeyError(key, "holds a number that is not finite");
    out.push_back(static_cast<float>(number));
  }
  return out;
}

StatusOr<std::vector<int32_t>> GgufFile::Int32s(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return KeyError(key, "is missing");
  std::vector<int32_t> out;
  const auto add = [&](auto number) {
    if (!std::in_range<int32_t>(number)) return false;
    out.push_back(static_cast<int32_t>(number));
    return true;
  };
  if (const auto* narrow = std::get_if<std::vector<int64_t>>(value)) {
    if (std::all_of(narrow->begin(), narrow->end(), add)) return out;
  } else if (const auto* wide = std::get_if<std::vector<uint64_t>>(value)) {
    if (std::all_of(wide->begin(), wide->end(), add)) return out;
  }
  return KeyError(key, "must be an array of 32-bit integers");
}

Status GgufFile::CheckConvertible(const GgufTensor& tensor) const {
  if (tensor.type.has_value()) return OkStatus();
  return Unimplemented(fmt::format(
      "{}: tensor {}: type {} has no conversion (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
      "Q5_1, Q4_K, Q6_K)",
      path(), tensor.name, GgufTypeName(tensor.type_id)));
}

Status GgufFile::ConvertTensor(const GgufTensor& tensor, std::span<float> out) const {
  TITAN_RETURN_IF_ERROR(CheckConvertible(tensor));
  TITAN_CHECK(out.size() == static_cast<size_t>(tensor.num_elements()));
  ConvertToF32(*tensor.type, tensor.bytes, out);
  return OkStatus();
}

}  // namespace titan::formats
