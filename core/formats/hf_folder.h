// SPDX-License-Identifier: Apache-2.0
//
// A folder in Hugging Face layout: as a ModelSource, and written out of a running model.
#ifndef TITAN_CORE_FORMATS_HF_FOLDER_H_
#define TITAN_CORE_FORMATS_HF_FOLDER_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/formats/model_source.h"
#include "core/formats/safetensors.h"

namespace titan::formats {

StatusOr<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& folder);

// Writes config.json and model.safetensors (F32) into a folder that transformers loads, and the
// tokenizer files where the source has them in that form. The weights file appears only when Finish
// succeeds. One thread.
class HfFolderWriter {
 public:
  // Makes the folder if it is missing. A GGUF's tokenizer is not converted: the folder then has no
  // tokenizer.json; the chat template is written in every case.
  static StatusOr<HfFolderWriter> Create(const std::string& folder, const ModelConfig& config,
                                         const TokenizerMaterial& tokenizer,
                                         const std::string& chat_template);
  // In the order of CanonicalTensors(config), each in any number of pieces; as SafetensorsWriter.
  Status Append(std::string_view name, std::span<const float> values) {
    return writer_.Append(name, values);
  }
  Status Finish() { return writer_.Finish(); }

 private:
  explicit HfFolderWriter(SafetensorsWriter writer) : writer_(std::move(writer)) {}

  SafetensorsWriter writer_;
};

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_HF_FOLDER_H_
