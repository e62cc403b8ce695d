// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/metrics_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "clients/cluster/terminal.h"
#include "core/base/nearest_name.h"

namespace titan::cli {
namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == ':';
}

// Reads {name="value",...} from `at`; false: malformed.
bool ReadLabels(const std::string& line, size_t* at, std::map<std::string, std::string>* labels) {
  if (*at >= line.size() || line[*at] != '{') return true;
  ++*at;
  while (*at < line.size() && line[*at] != '}') {
    const size_t equals = line.find("=\"", *at);
    if (equals == std::string::npos) return false;
    const std::string name = line.substr(*at, equals - *at);
    std::string value;
    size_t i = equals + 2;
    for (; i < line.size() && line[i] != '"'; ++i) {
      if (line[i] == '\\' && i + 1 < line.size()) {
        ++i;
        value += line[i] == 'n' ? '\n' : line[i];
      } else {
        value += line[i];
      }
    }
    if (i >= line.size()) return false;
    (*labels)[name] = value;
    *at = i + 1;
    if (*at < line.size() && line[*at] == ',') ++*at;
  }
  if (*at >= line.size()) return false;
  ++*at;
  return true;
}

}  // namespace

StatusOr<std::vector<MetricValue>> ParseMetrics(const std::string& text) {
  std::vector<MetricValue> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    MetricValue metric;
    size_t at = 0;
    while (at < line.size() && IsNameChar(line[at])) ++at;
    metric.name = line.substr(0, at);
    if (metric.name.empty() || !ReadLabels(line, &at, &metric.labels) || at >= line.size() ||
        line[at] != ' ') {
      return DataLoss("not a metric: '" + line + "'");
    }
    const std::string number = line.substr(at + 1);
    char* stop = nullptr;
    metric.value = std::strtod(number.c_str(), &stop);
    if (stop == number.c_str()) return DataLoss("not a metric: '" + line + "'");
    if (!metric.name.ends_with("_bucket")) all.push_back(std::move(metric));
  }
  return all;
}

Status NoSuchMetric(const std::string& wanted, const std::vector<std::string>& names,
                    const std::string& data) {
  std::string nearest = NearestName(wanted, names);
  if (nearest.empty()) {
    std::vector<std::string> words;
    for (const std::string& name : names) {
      for (size_t begin = 0; begin <= name.size();) {
        const size_t end = std::min(name.find('_', begin), name.size());
        if (end > begin) words.push_back(name.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    nearest = NearestName(wanted, words);
  }
  return NotFound("no metric has '" + wanted + "' in its name; " +
                  (nearest.empty() ? "" : "did you mean '" + nearest + "'? ") +
                  "see them all with: titanctl metrics --data " + cluster::ShellWord(data));
}

std::string FormatLabels(const std::map<std::string, std::string>& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, value);
  }
  return text;
}

std::string FormatValue(const MetricValue& metric) {
  const double v = metric.value;
  const auto has = [&](const char* unit) { return metric.name.find(unit) != std::string::npos; };
  if (has("_bytes") && v >= 1024) {
    return v >= (1u << 30)   ? fmt::format("{:.2f} GiB", v / (1u << 30))
           : v >= (1u << 20) ? fmt::format("{:.1f} MiB", v / (1u << 20))
                             : fmt::format("{:.1f} KiB", v / 1024);
  }
  const bool is_count = metric.name.ends_with("_count") || metric.name.ends_with("_total");
  if (has("_seconds") && !is_count) return fmt::format("{:.3f} s", v);
  if (v == std::floor(v) && std::fabs(v) < 1e15) return fmt::format("{:.0f}", v);
  return fmt::format("{:.6g}", v);
}

}  // namespace titan::cli
