// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include <nlohmann/json.hpp>

namespace titan::runtime {
namespace {

// State of the process-wide log. The mutex serves `write`; spdlog's sink has its own.
struct Log {
  std::atomic<LogLevel> level = LogLevel::kInfo;
  SystemClock system_clock;
  std::mutex mutex;
  LogOptions options;
  spdlog::logger logger{"titan", std::make_shared<spdlog::sinks::stderr_sink_mt>()};

  Log() {
    logger.set_pattern("%v");
    logger.set_level(spdlog::level::trace);
    logger.flush_on(spdlog::level::trace);
  }
};

Log& TheLog() {
  static Log* log = new Log;  // never destroyed: threads may log until the process ends
  return *log;
}

std::string TimeText(int64_t unix_ms) {
  const time_t seconds = unix_ms / 1000;
  struct tm parts;
  gmtime_r(&seconds, &parts);
  char text[80];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(unix_ms % 1000));
  return text;
}

}  // namespace

StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (name == NameOf(level)) return level;
  }
  return InvalidArgument("log level '" + std::string(name) +
                         "' is not one of debug, info, warning, error");
}

std::string_view NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

void InitLog(LogOptions options) {
  Log& log = TheLog();
  std::lock_guard lock(log.mutex);
  log.level = options.level;
  log.options = std::move(options);
}

void SetLogLevel(LogLevel level) { TheLog().level = level; }

bool LogEnabled(LogLevel level) { return level >= TheLog().level.load(std::memory_order_relaxed); }

void LogEvent(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  Log& log = TheLog();
  const Clock* clock = log.options.clock != nullptr ? log.options.clock : &log.system_clock;
  nlohmann::ordered_json line;
  line["time"] = TimeText(clock->UnixMs());
  line["level"] = NameOf(level);
  if (!log.options.worker.empty()) line["worker"] = log.options.worker;
  line["event"] = event;
  for (const LogField& field : fields) {
    std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  }
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (log.options.write) {
    std::lock_guard lock(log.mutex);
    log.options.write(text);
  } else {
    log.logger.log(spdlog::level::info, spdlog::string_view_t(text.data(), text.size()));
  }
}

}  // namespace titan::runtime
