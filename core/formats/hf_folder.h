// SPDX-License-Identifier: Apache-2.0
//
// A folder in Hugging Face layout: as a ModelSource (config.json, model.safetensors or
// model.safetensors.index.json with its shards; generation_config.json, tokenizer.json,
// tokenizer_config.json, chat_template.jinja where they are there), and written.
#ifndef TITAN_CORE_FORMATS_HF_FOLDER_H_
#define TITAN_CORE_FORMATS_HF_FOLDER_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_bundle.h"
#include "core/formats/model_source.h"
#include "core/formats/safetensors.h"

namespace titan::formats {

StatusOr<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& folder);

// Writes a whole folder: config.json, generation_config.json, tokenizer.json,
// tokenizer_config.json with the chat template, model.safetensors (F32). Everything is written into
// a folder beside it, "<folder>.partial-<process>-<n>", which takes the name when Finish succeeds;
// an abandoned writer removes it, and the next one beside it what a killed process left. Memory
// does not grow with the number of tensors. One thread.
class HfFolderWriter {
 public:
  // FailedPrecondition: the folder exists and is not empty. InvalidArgument: the bundle.
  // Unavailable, with path and reason: the system refused.
  static StatusOr<HfFolderWriter> Create(const std::string& folder, const ModelBundle& bundle);
  HfFolderWriter(HfFolderWriter&& other) noexcept { *this = std::move(other); }
  HfFolderWriter& operator=(HfFolderWriter&& other) noexcept;
  ~HfFolderWriter();

  // In the order of CanonicalTensors(config), each in any number of pieces; as SafetensorsWriter.
  // Experts that the file keeps in one tensor are gathered one at a time.
  Status Append(std::string_view name, std::span<const float> values);
  Status Finish();

 private:
  HfFolderWriter() = default;

  std::string folder_;
  std::string partial_;  // "" once it is gone
  std::optional<SafetensorsWriter> weights_;
  ModelConfig config_;
  // An expert's block that is not whole yet.
  struct Block {
    std::string name;           // of the part that came last
    int64_t elements = 0;       // of it
    int64_t filled = 0;         // of the block
    std::vector<float> values;  // empty: none
  } block_;
};

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_HF_FOLDER_H_
