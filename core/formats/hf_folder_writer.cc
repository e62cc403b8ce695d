// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/base/check.h"
#include "core/base/durable_file.h"
#include "core/formats/fused_experts.h"
#include "core/formats/hf_folder.h"

namespace titan::formats {
namespace {

constexpr int kMaxTries = 1000;  // of names for the folder that is being written

// Removes what processes that were killed left beside `folder`: "<folder>.partial-<pid>-<n>".
void RemoveAbandoned(const std::string& folder) {
  const std::filesystem::path path(folder);
  const std::string prefix = path.filename().string() + ".partial-";
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  std::vector<std::filesystem::path> abandoned;
  for (std::filesystem::directory_iterator at(parent, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    pid_t pid = 0;
    const char* last = name.data() + name.size();
    const auto [stop, bad] = std::from_chars(name.data() + prefix.size(), last, pid);
    if (bad != std::errc() || stop == last || *stop != '-' || pid <= 0) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) abandoned.push_back(at->path());
  }
  for (const auto& folder_left : abandoned) std::filesystem::remove_all(folder_left, error);
}

// A new folder beside `folder`.
StatusOr<std::string> MakePartial(const std::string& folder) {
  for (int i = 0; i < kMaxTries; ++i) {
    const std::string path = fmt::format("{}.partial-{}-{}", folder, getpid(), i);
    if (mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) return SystemError(errno, "cannot create", path);
  }
  return Unavailable(folder + ": too many unfinished exports beside it, remove them");
}

}  // namespace

StatusOr<HfFolderWriter> HfFolderWriter::Create(const std::string& folder,
                                                const ModelBundle& bundle) {
  TITAN_ASSIGN_OR_RETURN(const FolderTexts texts, FolderTextsOf(bundle));
  std::filesystem::path root(folder);
  if (!root.has_filename()) root = root.parent_path();  // a slash at the end
  if (root.empty()) return InvalidArgument("the folder to write: is an empty path");
  std::error_code error;
  if (std::filesystem::exists(root, error) &&
      !(std::filesystem::is_directory(root, error) && std::filesystem::is_empty(root, error))) {
    return FailedPrecondition(root.string() +
                              ": exists and is not an empty folder, name a new one");
  }
  if (root.has_parent_path()) {
    std::filesystem::create_directories(root.parent_path(), error);
    if (error) return SystemError(error.value(), "cannot create", root.parent_path().string());
  }
  HfFolderWriter writer;
  writer.folder_ = root.string();
  RemoveAbandoned(writer.folder_);
  TITAN_ASSIGN_OR_RETURN(writer.partial_, MakePartial(writer.folder_));
  const std::pair<const char*, const std::string*> files[] = {
      {"config.json", &texts.config_json},
      {"generation_config.json", &texts.generation_config_json},
      {"tokenizer.json", &texts.tokenizer_json},
      {"tokenizer_config.json", &texts.tokenizer_config_json}};
  for (const auto& [leaf, text] : files) {
    if (text->empty()) continue;
    TITAN_RETURN_IF_ERROR(WriteNewFile(fmt::format("{}/{}", writer.partial_, leaf), *text));
  }
  TITAN_ASSIGN_OR_RETURN(SafetensorsWriter weights,
                         SafetensorsWriter::Create(writer.partial_ + "/model.safetensors",
                                                   FileTensors(bundle.config), {{"format", "pt"}}));
  writer.weights_ = std::move(weights);
  writer.config_ = bundle.config;
  return writer;
}

HfFolderWriter& HfFolderWriter::operator=(HfFolderWriter&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(partial_, other.partial_);
  std::swap(weights_, other.weights_);
  std::swap(config_, other.config_);
  std::swap(block_, other.block_);
  return *this;
}

HfFolderWriter::~HfFolderWriter() {
  if (partial_.empty()) return;
  weights_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);
}

Status HfFolderWriter::Append(std::string_view name, std::span<const float> values) {
  const std::optional<FusedPlace> place = FusedPlaceOf(config_, name);
  if (!place.has_value()) return weights_->Append(name, values);
  if (name != block_.name) {
    block_.name = name;
    block_.elements = 0;
  }
  block_.values.resize(static_cast<size_t>(place->block_elements));
  const int64_t count = static_cast<int64_t>(values.size());
  if (block_.elements + count > place->rows * place->columns ||
      block_.filled + count > place->block_elements) {
    return FailedPrecondition(
        fmt::format("{}: tensor {}: more elements than it has, or out of turn", partial_, name));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (block_.elements + i) / place->columns,
                  column = (block_.elements + i) % place->columns;
    block_.values[static_cast<size_t>(place->first + row * place->row_step +
                                      column * place->column_step)] =
        values[static_cast<size_t>(i)];
  }
  block_.elements += count;
  block_.filled += count;
  if (block_.filled < place->block_elements) return OkStatus();
  TITAN_RETURN_IF_ERROR(weights_->Append(place->tensor, block_.values));
  block_ = {};
  return OkStatus();
}

Status HfFolderWriter::Finish() {
  TITAN_CHECK(!partial_.empty());
  TITAN_RETURN_IF_ERROR(weights_->Finish());
  TITAN_RETURN_IF_ERROR(RenameDurably(partial_, folder_));
  partial_.clear();
  return OkStatus();
}

}  // namespace titan::formats
