// SPDX-License-Identifier: Apache-2.0
//
// GgufFile: reader of GGUF versions 2 and 3, little end first. The file is mapped; metadata and the
// table of tensors are parsed and checked in full on opening, tensor data stays in the mapping.
//
//   magic "GGUF" | u32 version | u64 tensor count | u64 key count
//   keys:    string key | u32 type | value        (string = u64 length + bytes; array = u32 type,
//   u64 n) tensors: string name | u32 rank | u64 dims[rank], fastest first | u32 type | u64 offset
//   padding to general.alignment | data
//
// Every count and size is compared with the bytes that remain before anything is sized by it; every
// product and sum is checked. Nothing here knows about model families: see gguf_model.h.
//
// Const after opening; any thread.
#ifndef TITAN_CORE_FORMATS_GGUF_H_
#define TITAN_CORE_FORMATS_GGUF_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/formats/convert.h"
#include "core/formats/mapped_file.h"

namespace titan::formats {

// A metadata value. Integers of every width are widened; strings are views of the mapping. Arrays
// of arrays are refused.
using GgufStrings = std::vector<std::string_view>;
using GgufValue = std::variant<bool, int64_t, uint64_t, double, std::string_view, GgufStrings,
                               std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>,
                               std::vector<bool>>;

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;      // row-major: the slowest dimension first, unlike in the file
  uint32_t type_id = 0;            // the file's number
  std::optional<StoredType> type;  // none: a type without a conversion here
  uint64_t offset = 0;             // in the file
  // The tensor's bytes; empty if type is none, because its size is not known.
  std::span<const uint8_t> bytes;

  int64_t num_elements() const;
};

class GgufFile {
 public:
  // NotFound, Unavailable: as MappedFile::Open. InvalidArgument: the file and the field that is
  // malformed. Unimplemented: a version or byte order that is not covered.
  static StatusOr<GgufFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  uint32_t version() const { return version_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  // In file order.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Null if there is none of this name.
  const GgufTensor* FindTensor(std::string_view name) const;

  bool HasKey(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  // Typed access. InvalidArgument "<path>: key <key>: ...": missing, of another type, out of range.
  StatusOr<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  StatusOr<int64_t> IntOr(std::string_view key, int64_t low, int64_t high, int64_t missing) const;
  StatusOr<double> Number(std::string_view key) const;
  StatusOr<bool> BoolOr(std::string_view key, bool missing) const;
  StatusOr<std::string> String(std::string_view key) const;
  StatusOr<std::string> StringOr(std::string_view key, std::string_view missing) const;
  StatusOr<std::vector<std::string>> Strings(std::string_view key) const;
  StatusOr<std::vector<float>> Floats(std::string_view key) const;
  StatusOr<std::vector<int32_t>> Int32s(std::string_view key) const;

  // Converts the whole tensor, exact bits, nothing flushed. Unimplemented: a type without a
  // conversion, naming tensor and type. REQUIRES: out.size() == tensor.num_elements(), tensor of
  // this file.
  Status ConvertTensor(const GgufTensor& tensor, std::span<float> out) const;
  // "<path>: tensor <name>: type <type> has no conversion", or OK.
  Status CheckConvertible(const GgufTensor& tensor) const;

 private:
  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}
  Status KeyError(std::string_view key, std::string_view problem) const;
  const GgufValue* Find(std::string_view key) const;

  MappedFile file_;
  uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;

  friend class GgufParser;
};

// "Q4_K" for 12, "type 99" for a number that is not known.
std::string GgufTypeName(uint32_t type_id);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_GGUF_H_
