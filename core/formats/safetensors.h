// SPDX-License-Identifier: Apache-2.0
//
// safetensors: a reader over a mapped file and a streaming writer.
//
//   u64 header length | header: one JSON object, padded with spaces | data
//   header: {"__metadata__": {text: text}, <name>: {"dtype", "shape", "data_offsets": [begin,
//   end]}, ...}
//
// The reader accepts a file only if the tensors cover the data exactly: no overlap, no gap, nothing
// behind the last; every size is dtype times shape. Messages name the file and the tensor.
#ifndef TITAN_CORE_FORMATS_SAFETENSORS_H_
#define TITAN_CORE_FORMATS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/formats/convert.h"
#include "core/formats/mapped_file.h"
#include "core/formats/model_config.h"

namespace titan::formats {

struct SafetensorsTensor {
  std::string dtype;               // as in the file, for example "BF16"
  std::optional<StoredType> type;  // none: a dtype without a conversion to f32
  std::vector<int64_t> shape;      // a scalar has rank 0
  std::span<const uint8_t> bytes;

  int64_t num_elements() const;
};

// Const after opening; any thread.
class SafetensorsFile {
 public:
  // NotFound, Unavailable: as MappedFile::Open. InvalidArgument: malformed, naming file and tensor.
  static StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsTensor, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Converts the whole tensor, exact bits, nothing flushed. NotFound; InvalidArgument: the span's
  // size is another; Unimplemented: dtype without a conversion (F32, F16, BF16 have one).
  Status ConvertTensor(std::string_view name, std::span<float> out) const;

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  Status Parse();
  Status ParseTensor(const std::string& name, const void* json_entry);
  Status CheckCoverage() const;
  Status Error(std::string_view field, std::string_view problem) const;

  MappedFile file_;
  std::span<const uint8_t> data_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes one file of F32 tensors, front to back, without holding more than the caller's buffer. The
// file appears under its name only when Finish succeeds (written beside it, synced, renamed); an
// abandoned writer removes what it wrote. One thread.
class SafetensorsWriter {
 public:
  // The header is written at once: tensors lie in the file in the order given. metadata usually
  // holds
  // {"format", "pt"}, which transformers asks for. InvalidArgument: a name twice or "__metadata__".
  static StatusOr<SafetensorsWriter> Create(const std::string& path,
                                            const std::vector<TensorSpec>& tensors,
                                            const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();

  // The next elements of the tensor called name, which must be the one that is due in the order
  // given to Create; a tensor may come in any number of pieces. FailedPrecondition: another is due,
  // or too many.
  Status Append(std::string_view name, std::span<const float> values);

  // Syncs and renames. FailedPrecondition: tensors are missing, naming the first.
  Status Finish();

 private:
  SafetensorsWriter() = default;
  Status WriteBytes(const void* data, size_t num_bytes);
  void SkipFinished();

  std::string path_;
  int fd_ = -1;
  std::vector<TensorSpec> tensors_;
  size_t next_ = 0;          // the tensor that is due
  int64_t num_written_ = 0;  // elements of it
};

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_SAFETENSORS_H_
