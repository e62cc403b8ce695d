// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/endpoint.h"

#include <unistd.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "core/runtime/files.h"

namespace titan::runtime {

std::string EndpointPath(const std::string& data_folder, const std::string& worker_id) {
  return data_folder + "/" + worker_id + ".endpoint.json";
}

std::string ToJsonText(const Endpoint& endpoint) {
  nlohmann::ordered_json json;
  json["worker_id"] = endpoint.worker_id;
  json["role"] = endpoint.role;
  json["incarnation"] = endpoint.incarnation;
  json["pid"] = endpoint.pid;
  json["exe"] = endpoint.exe;
  json["address"] = endpoint.address;
  json["health_address"] = endpoint.health_address;
  return json.dump(2) + "\n";
}

StatusOr<Endpoint> EndpointFromJsonText(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("endpoint file: not a JSON object");
  Endpoint endpoint;
  const auto text_of = [&](const char* key, std::string* out) {
    if (!json.contains(key) || !json[key].is_string()) return false;
    *out = json[key].get<std::string>();
    return true;
  };
  if (!text_of("worker_id", &endpoint.worker_id) || !text_of("role", &endpoint.role) ||
      !text_of("incarnation", &endpoint.incarnation) || !text_of("exe", &endpoint.exe) ||
      !text_of("address", &endpoint.address) ||
      !text_of("health_address", &endpoint.health_address) || !json.contains("pid") ||
      !json["pid"].is_number_integer()) {
    return InvalidArgument("endpoint file: a field is missing or of another type");
  }
  endpoint.pid = json["pid"].get<int64_t>();
  return endpoint;
}

Status WriteEndpoint(const std::string& data_folder, const Endpoint& endpoint) {
  return WriteFileAtomically(EndpointPath(data_folder, endpoint.worker_id), ToJsonText(endpoint));
}

StatusOr<Endpoint> ReadEndpoint(const std::string& data_folder, const std::string& worker_id) {
  const std::string path = EndpointPath(data_folder, worker_id);
  TITAN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 1 << 20));
  auto endpoint = EndpointFromJsonText(text);
  if (!endpoint.ok()) return Annotate(endpoint.status(), path);
  return endpoint;
}

void RemoveEndpoint(const std::string& data_folder, const Endpoint& endpoint) {
  const auto found = ReadEndpoint(data_folder, endpoint.worker_id);
  if (!found.ok() || found->incarnation != endpoint.incarnation) return;
  std::error_code ignored;  // the file names an address that nobody serves; readers check the pid
  std::filesystem::remove(EndpointPath(data_folder, endpoint.worker_id), ignored);
}

std::string ExecutablePath() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string() : path.string();
}

}  // namespace titan::runtime
