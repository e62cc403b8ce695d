// SPDX-License-Identifier: Apache-2.0
// data upload, data list, data rm.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "clients/cli/commands.h"
#include "clients/cluster/terminal.h"
#include "core/runtime/files.h"
#include "services/rpc/config.h"

namespace titan::cli {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;  // as the orchestrator takes

std::string Size(uint64_t bytes) {
  if (bytes >= (1u << 30)) {
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1u << 30));
  }
  return bytes >= (1u << 20) ? fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1u << 20))
                             : fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
}

// The bytes of the file; every failure is one of the command line.
StatusOr<std::string> ReadUpload(const std::string& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    return InvalidArgument("'" + file + "' does not exist");
  }
  if (!std::filesystem::is_regular_file(status)) {  // reading a pipe could wait for ever
    return InvalidArgument("'" + file + "' is a " +
                           (std::filesystem::is_directory(status) ? "folder" : "pipe or device") +
                           "; give a file, JSONL");
  }
  const uint64_t size = std::filesystem::file_size(file, error);
  if (!error && size > kMaxBytes) {
    return InvalidArgument("'" + file + "' has " + Size(size) + "; data upload takes at most " +
                           Size(kMaxBytes) + "; name larger files by data.path in the job");
  }
  auto bytes = runtime::ReadFile(file, kMaxBytes);
  if (!bytes.ok()) return InvalidArgument(MessageOf(bytes.status()));
  return bytes;
}

// The orchestrator knows the file by the name that it was sent under; people by its path.
Status WithPath(const Status& status, const std::string& name, const std::string& file) {
  const std::string message = MessageOf(status);
  if (!message.starts_with(name + ":")) return Annotate(status, file);
  return MakeStatus(status.code(), file + message.substr(name.size()));
}

}  // namespace

int UploadData(const Common& common, const DataOptions& options) {
  const auto bytes = ReadUpload(options.file);
  if (!bytes.ok()) return Fail(bytes.status());
  const std::string name =
      options.name.empty() ? std::filesystem::path(options.file).filename().string() : options.name;
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->UploadData(name, *bytes);
  if (!response.ok()) {
    const bool about_file = response.status().code() == StatusCode::kInvalidArgument;
    return Fail(about_file ? WithPath(response.status(), name, options.file) : response.status());
  }
  if (common.json) {
    std::cout << rpc::ToJsonText(*response) << std::endl;
    return kExitOk;
  }
  const auto& data = response->data();
  std::cout << data.id() << std::endl;
  std::cerr << fmt::format("{}: {} rows, {}{}; use it as \"data\": {{\"id\": \"{}\"}}\n",
                           cluster::PrintableLine(data.name()), data.rows(), Size(data.num_bytes()),
                           response->existed() ? ", stored before" : "", data.id());
  return kExitOk;
}

int ListData(const Common& common) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->ListData();
  if (!response.ok()) return Fail(response.status());
  if (common.json) {
    std::cout << rpc::ToJsonText(*response) << std::endl;
    return kExitOk;
  }
  if (response->data().empty()) {
    std::cout << "no data; store a file with: titanctl data upload FILE\n";
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {{"ID", "NAME", "ROWS", "SIZE"}};
  for (const auto& data : response->data()) {
    rows.push_back({data.id(), data.name(), std::to_string(data.rows()), Size(data.num_bytes())});
  }
  std::cout << cluster::FormatTable(rows) << std::flush;
  return kExitOk;
}

int RemoveData(const Common& common, const std::string& data_id) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->RemoveData(data_id);
  if (!response.ok()) return Fail(response.status());
  if (common.json) {
    std::cout << rpc::ToJsonText(*response) << std::endl;
    return kExitOk;
  }
  const auto& data = response->data();
  std::cout << fmt::format("{} ({}): deleted, {} freed\n", data.id(),
                           cluster::PrintableLine(data.name()), Size(data.num_bytes()))
            << std::flush;
  return kExitOk;
}

}  // namespace titan::cli
