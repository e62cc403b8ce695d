// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/log_view.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include <nlohmann/json.hpp>

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;

Json Parse(const std::string& line) {
  if (line.empty() || line[0] != '{') return Json();
  Json json = Json::parse(line, nullptr, false);
  return json.is_object() && json.contains("event") && json["event"].is_string() ? json : Json();
}

std::string TextOf(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

}  // namespace

std::string TimeOfLogLine(const std::string& line) { return TextOf(Parse(line), "time"); }

std::string FormatLogLine(const std::string& line, const std::string& daemon,
                          const cluster::Terminal& terminal) {
  const Json json = Parse(line);
  if (json.is_null())
    return fmt::format("{:12} {:12} {}", "", daemon, cluster::Printable(line));
  std::string time = cluster::PrintableLine(TextOf(json, "time"));  // 2026-01-31T12:00:00.123Z
  if (time.size() == 24) time = time.substr(11, 12);
  const std::string level = cluster::PrintableLine(TextOf(json, "level"));
  const cluster::Color color = level == "error"     ? cluster::Color::kRed
                               : level == "warning" ? cluster::Color::kYellow
                                                    : cluster::Color::kNone;
  std::string text = fmt::format(
      "{:12} {:12} {} {}", time, daemon, terminal.Paint(color, fmt::format("{:7}", level)),
      terminal.Paint(cluster::Color::kBold,
                     cluster::PrintableLine(json["event"].get<std::string>())));
  for (const auto& [key, value] : json.items()) {
    if (key == "time" || key == "level" || key == "worker" || key == "event") continue;
    const std::string shown = cluster::PrintableLine(
        value.is_string() ? value.get<std::string>()
                          : value.dump(-1, ' ', false, Json::error_handler_t::replace));
    const bool quote = shown.empty() || shown.find(' ') != std::string::npos;
    text += fmt::format(" {}={}{}{}", cluster::PrintableLine(key), quote ? "\"" : "", shown,
                        quote ? "\"" : "");
  }
  return text;
}

std::vector<std::string> LogFile::ReadNew() {
  std::vector<std::string> lines;
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return lines;
  struct stat info = {};
  if (fstat(fd, &info) == 0) {
    if (info.st_ino != inode_ || static_cast<uint64_t>(info.st_size) < offset_) {
      offset_ = 0;
      partial_.clear();
    }
    inode_ = info.st_ino;
    char buffer[65536];
    for (;;) {
      const ssize_t n = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(offset_));
      if (n <= 0) break;
      offset_ += static_cast<uint64_t>(n);
      partial_.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(partial_.substr(begin, end - begin));
  }
  partial_.erase(0, begin);
  return lines;
}

std::vector<LogLine> MergeLogs(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& lines_by_daemon,
    size_t limit) {
  std::vector<LogLine> all;
  for (const auto& [daemon, lines] : lines_by_daemon) {
    std::string time;
    for (const std::string& line : lines) {
      if (const std::string own = TimeOfLogLine(line); !own.empty()) time = own;
      all.push_back({time, daemon, line});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const LogLine& a, const LogLine& b) { return a.time < b.time; });
  if (limit > 0 && all.size() > limit) {
    all.erase(all.begin(), all.end() - static_cast<ptrdiff_t>(limit));
  }
  return all;
}

}  // namespace titan::cli
