// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/job_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "clients/cluster/job_fields.h"
#include "core/runtime/files.h"

namespace titan::cluster {
namespace {

namespace fs = std::filesystem;
using rpc::JsonNode;

constexpr size_t kMaxFileBytes = 16u << 20;

std::string FolderOf(const std::string& file) {
  std::error_code error;
  return fs::absolute(file, error).parent_path().string();
}

// The absolute form of `path`, which must exist.
Status Resolve(const std::string& folder, const std::string& where, const std::string& field,
               std::string* path) {
  fs::path resolved = *path;
  if (resolved.is_relative()) resolved = fs::path(folder) / resolved;
  std::error_code error;
  resolved = fs::weakly_canonical(resolved, error);
  if (error || !fs::exists(resolved, error)) {
    return InvalidArgument(where + ": " + field + ": '" + *path + "' does not exist (looked at '" +
                           resolved.string() + "')");
  }
  *path = resolved.string();
  return OkStatus();
}

const JsonNode* Find(const JsonNode& node, std::string_view name) {
  for (const JsonNode::Member& member : node.members) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

// path and id stand for each other, in data as in model: what names one of them takes the other
// one's earlier value away.
template <typename Source>
void KeepOneSource(bool names_path, bool names_id, Source* source) {
  if (names_path && !names_id) source->clear_id();
  if (names_id && !names_path) source->clear_path();
}

// Resolves the paths that this document sets.
Status ResolvePaths(const JsonNode& root, const std::string& folder, JobFile* job) {
  if (const JsonNode* data = Find(root, "data"); data != nullptr) {
    KeepOneSource(Find(*data, "path") != nullptr, Find(*data, "id") != nullptr,
                  job->spec.mutable_data());
  }
  if (const JsonNode* model = Find(root, "model"); model != nullptr) {
    KeepOneSource(Find(*model, "path") != nullptr, Find(*model, "id") != nullptr,
                  job->spec.mutable_model());
  }
  for (const char* part : {"model", "data"}) {
    const JsonNode* message = Find(root, part);
    if (message == nullptr || Find(*message, "path") == nullptr) continue;
    const std::string field = std::string(part) + ".path";
    std::string* path = field == "model.path" ? job->spec.mutable_model()->mutable_path()
                                              : job->spec.mutable_data()->mutable_path();
    TITAN_RETURN_IF_ERROR(Resolve(folder, job->origins.Of(field), field, path));
  }
  return OkStatus();
}

Status ReadChain(const std::string& file, const std::string& named_by,
                 std::vector<std::string> seen, JobFile* job) {
  std::error_code error;
  const std::string self = fs::weakly_canonical(file, error).string();
  if (std::find(seen.begin(), seen.end(), self) != seen.end()) {
    return InvalidArgument(named_by + ": extends: '" + file + "' extends itself");
  }
  if (seen.size() >= kMaxExtends) {
    return InvalidArgument(named_by + ": extends: more than " + std::to_string(kMaxExtends) +
                           " files build on each other");
  }
  seen.push_back(self);
  const auto text = runtime::ReadFile(file, kMaxFileBytes);
  if (!text.ok()) {
    const bool large = text.status().code() == StatusCode::kResourceExhausted;
    return InvalidArgument(
        (named_by.empty() ? "" : named_by + ": extends: ") + MessageOf(text.status()) +
        (large ? "; a job file is JSON text, is this another kind of file?" : ""));
  }
  TITAN_ASSIGN_OR_RETURN(JsonNode root, rpc::ParseJsonTree(*text, file));
  const auto extends = std::find_if(root.members.begin(), root.members.end(),
                                    [](const auto& member) { return member.name == "extends"; });
  if (extends != root.members.end()) {
    const JsonNode value = extends->value;
    const std::string place = file + ":" + std::to_string(value.position.line) + ":" +
                              std::to_string(value.position.column);
    if (value.kind != JsonNode::Kind::kString || value.text.empty()) {
      return InvalidArgument(place + ": extends: wants the path of a job file, has " +
                             std::string(rpc::Describe(value.kind)));
    }
    root.members.erase(extends);
    const fs::path base(value.text);
    const std::string path =
        base.is_absolute() ? base.string() : (fs::path(file).parent_path() / base).string();
    TITAN_RETURN_IF_ERROR(ReadChain(path, place, std::move(seen), job));
  }
  TITAN_RETURN_IF_ERROR(rpc::ReadConfigTree(root, file, &job->spec, &job->origins, ValidJobValues));
  return ResolvePaths(root, FolderOf(file), job);
}

}  // namespace

StatusOr<JobFile> ReadJobFile(const std::string& file,
                              const std::vector<std::string>& assignments) {
  JobFile job;
  TITAN_RETURN_IF_ERROR(ReadChain(file, "", {}, &job));
  std::error_code error;
  const std::string here = fs::current_path(error).string();
  for (const std::string& assignment : assignments) {
    TITAN_RETURN_IF_ERROR(
        rpc::SetConfigValue(assignment, "--set", &job.spec, &job.origins, ValidJobValues));
    if (assignment.starts_with("data.")) {
      KeepOneSource(assignment.starts_with("data.path="), assignment.starts_with("data.id="),
                    job.spec.mutable_data());
    }
    if (assignment.starts_with("model.")) {
      KeepOneSource(assignment.starts_with("model.path="), assignment.starts_with("model.id="),
                    job.spec.mutable_model());
    }
    for (const std::string field : {"model.path", "data.path"}) {
      if (!assignment.starts_with(field + "=")) continue;
      std::string* path = field == "model.path" ? job.spec.mutable_model()->mutable_path()
                                                : job.spec.mutable_data()->mutable_path();
      if (!path->empty()) TITAN_RETURN_IF_ERROR(Resolve(here, "--set " + assignment, field, path));
    }
  }
  return job;
}

}  // namespace titan::cluster
