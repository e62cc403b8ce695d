// SPDX-License-Identifier: Apache-2.0
#include "core/formats/model_source.h"

#include <filesystem>

#include "core/formats/gguf_model.h"
#include "core/formats/hf_folder.h"

namespace titan::formats {

StatusOr<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return NotFound(path + ": no such file or folder");
  return std::filesystem::is_directory(status) ? OpenHfFolder(path) : OpenGgufModel(path);
}

}  // namespace titan::formats
