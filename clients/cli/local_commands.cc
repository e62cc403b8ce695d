// SPDX-License-Identifier: Apache-2.0
// logs, metrics: what the files and health listeners of a cluster on this machine say.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/log_view.h"
#include "clients/cli/metrics_view.h"
#include "clients/cluster/cluster.h"
#include "clients/cluster/terminal.h"
#include "core/base/nearest_name.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/files.h"
#include "core/runtime/health.h"
#include "core/runtime/shutdown.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kFollowPause{100};
constexpr std::chrono::milliseconds kHealthDeadline{2000};

// The names that match `wanted` (empty: all). NotFound names the nearest.
StatusOr<std::vector<std::string>> Choose(const std::vector<std::string>& names,
                                          const std::string& wanted, const std::string& where) {
  if (wanted.empty()) return names;
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    if (name == wanted || name.starts_with(wanted + "-")) chosen.push_back(name);
  }
  if (!chosen.empty()) return chosen;
  const std::string nearest = NearestName(wanted, names);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return NotFound("no daemon '" + wanted + "' in " + where +
                  (nearest.empty() ? "; there are: " + list : "; did you mean '" + nearest + "'?"));
}

StatusOr<std::vector<runtime::Endpoint>> EndpointsOf(const std::string& data) {
  TITAN_RETURN_IF_ERROR(cluster::OrchestratorAddressOf(data).status());  // it runs
  TITAN_ASSIGN_OR_RETURN(const std::string text,
                         runtime::ReadFile(cluster::EndpointsPath(data), 16u << 20));
  const Json json = Json::parse(text, nullptr, false);
  std::vector<runtime::Endpoint> endpoints;
  if (json.is_object() && json.contains("endpoints") && json["endpoints"].is_array()) {
    for (const auto& item : json["endpoints"]) {
      TITAN_ASSIGN_OR_RETURN(endpoints.emplace_back(), runtime::EndpointFromJsonText(item.dump()));
    }
  }
  return endpoints;
}

}  // namespace

int ShowLogs(const Common& common, const LogOptions& options) {
  runtime::ShutdownSignal signal(kSecondSignal);
  const std::string folder = common.data + "/logs";
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".log") names.push_back(at->path().stem().string());
  }
  if (names.empty()) {
    return Fail(Unavailable("no logs in '" + folder +
                            "'; start a cluster with: " + cluster::UpCommand(common.data)));
  }
  std::sort(names.begin(), names.end());
  const auto chosen = Choose(names, options.daemon, folder);
  if (!chosen.ok()) return Fail(chosen.status());
  const cluster::Terminal terminal = cluster::Terminal::Stdout();
  const auto print = [&](const std::vector<LogLine>& lines) {
    for (const LogLine& line : lines) {
      std::cout << (common.json ? line.text : FormatLogLine(line.text, line.daemon, terminal))
                << "\n";
    }
    std::cout << std::flush;
  };
  std::vector<LogFile> files;
  for (const std::string& name : *chosen) files.emplace_back(name, folder + "/" + name + ".log");
  size_t limit = static_cast<size_t>(options.lines);
  for (;;) {
    std::vector<std::pair<std::string, std::vector<std::string>>> fresh;
    for (LogFile& file : files) fresh.emplace_back(file.name(), file.ReadNew());
    print(MergeLogs(fresh, limit));
    limit = 0;  // what comes later is shown whole
    if (!options.follow || !std::cout.good()) return kExitOk;
    if (signal.requested()) return kExitDetached;
    std::this_thread::sleep_for(kFollowPause);
  }
}

int ShowMetrics(const Common& common, const MetricsOptions& options) {
  const auto endpoints = EndpointsOf(common.data);
  if (!endpoints.ok()) return Fail(Unavailable(MessageOf(endpoints.status())));
  std::vector<std::string> names;
  for (const auto& endpoint : *endpoints) names.push_back(endpoint.worker_id);
  const auto chosen = Choose(names, options.daemon, common.data);
  if (!chosen.ok()) return Fail(chosen.status());
  Json out = Json::array();
  std::vector<std::vector<std::string>> rows = {{"DAEMON", "METRIC", "LABELS", "VALUE"}};
  int code = kExitOk;
  bool any = false;
  std::vector<std::string> seen;  // names of all metrics
  for (const auto& endpoint : *endpoints) {
    if (std::find(chosen->begin(), chosen->end(), endpoint.worker_id) == chosen->end()) continue;
    const auto answer = runtime::GetHealth(endpoint.health_address, "/metrics", kHealthDeadline);
    if (!answer.ok()) {
      code = Fail(Annotate(answer.status(), endpoint.worker_id));
      continue;
    }
    if (options.raw) {
      std::cout << answer->body;
      continue;
    }
    const auto metrics = ParseMetrics(answer->body);
    if (!metrics.ok()) return Fail(Annotate(metrics.status(), endpoint.worker_id));
    for (const MetricValue& metric : *metrics) {
      seen.push_back(metric.name);
      if (metric.name.find(options.name) == std::string::npos) continue;
      any = true;
      if (common.json) {
        Json row;
        row["daemon"] = endpoint.worker_id;
        row["name"] = metric.name;
        row["labels"] = metric.labels;
        row["value"] = metric.value;
        out.push_back(std::move(row));
      } else {
        rows.push_back(
            {endpoint.worker_id, metric.name, FormatLabels(metric.labels), FormatValue(metric)});
      }
    }
  }
  if (options.raw) return code;
  if (!any && code == kExitOk) return Fail(NoSuchMetric(options.name, seen, common.data));
  if (common.json) {
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << cluster::FormatTable(rows) << std::flush;
  }
  return code;
}

}  // namespace titan::cli
