// SPDX-License-Identifier: Apache-2.0
// data upload, data list.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "clients/cli/commands.h"
#include "clients/cluster/terminal.h"
#include "core/runtime/files.h"
#include "services/rpc/config.h"

namespace titan::cli {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;

std::string Size(uint64_t bytes) {
  return bytes >= (1u << 20) ? fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1u << 20))
                             : fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
}

}  // namespace

int UploadData(const Common& common, const DataOptions& options) {
  const auto bytes = runtime::ReadFile(options.file, kMaxBytes);
  if (!bytes.ok()) {
    Fail(bytes.status());
    return kExitUsage;
  }
  const std::string name =
      options.name.empty() ? std::filesystem::path(options.file).filename().string() : options.name;
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->UploadData(name, *bytes);
  if (!response.ok()) return Fail(response.status());
  if (common.json) {
    std::cout << rpc::ToJsonText(*response) << std::endl;
    return kExitOk;
  }
  const auto& data = response->data();
  std::cout << data.id() << std::endl;
  std::cerr << fmt::format("{}: {} rows, {}{}; use it as \"data\": {{\"id\": \"{}\"}}\n",
                           data.name(), data.rows(), Size(data.num_bytes()),
                           response->existed() ? ", stored before" : "", data.id());
  return kExitOk;
}

int ListData(const Common& common) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const auto response = (*client)->ListData();
  if (!response.ok()) return Fail(response.status());
  if (common.json) {
    std::cout << rpc::ToJsonText(*response, /*all_fields=*/true) << std::endl;
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

}  // namespace titan::cli
