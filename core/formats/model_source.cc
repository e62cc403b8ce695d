// SPDX-License-Identifier: Apache-2.0
#include "core/formats/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/formats/gguf_model.h"
#include "core/formats/hf_folder.h"
#include "core/formats/mapped_file.h"

namespace titan::formats {
namespace {

namespace fs = std::filesystem;

bool BeginsWith(const MappedFile& file, std::string_view magic) {
  return file.bytes().size() >= magic.size() &&
         std::memcmp(file.bytes().data(), magic.data(), magic.size()) == 0;
}

// Files that are often pointed at by mistake are named; whatever else is not a GGUF is refused by
// its reader.
StatusOr<std::unique_ptr<ModelSource>> OpenFile(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > 8 && file.bytes()[8] == '{' && !BeginsWith(file, "GGUF")) {
    return InvalidArgument(
        path + ": is a safetensors file; give the folder that holds it and its config.json");
  }
  if (BeginsWith(file, "PK\x03\x04") || BeginsWith(file, "\x80\x02")) {
    return Unimplemented(path +
                         ": pickled weights can run code and are not read; save the model "
                         "as safetensors");
  }
  return OpenGgufModel(path);
}

bool IsGguf(const std::string& path) {
  const auto file = MappedFile::Open(path);
  return file.ok() && BeginsWith(*file, "GGUF");
}

StatusOr<std::unique_ptr<ModelSource>> OpenFolder(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / "config.json", error)) return OpenHfFolder(path);
  std::vector<std::string> files;
  for (auto it = fs::directory_iterator(path, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && IsGguf(it->path().string())) {
      files.push_back(it->path().string());
    }
  }
  if (error) return Unavailable(fmt::format("{}: cannot list: {}", path, error.message()));
  if (files.empty()) {
    return NotFound(path + ": holds neither config.json nor a GGUF file");
  }
  std::sort(files.begin(), files.end());
  if (files.size() > 1) {
    return InvalidArgument(fmt::format("{}: holds {} GGUF files ({}, ...), give one of them", path,
                                       files.size(), files[0]));
  }
  return OpenGgufModel(files[0]);
}

}  // namespace

StatusOr<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) return NotFound(path + ": no such file or folder");
  return fs::is_directory(status) ? OpenFolder(path) : OpenFile(path);
}

}  // namespace titan::formats
