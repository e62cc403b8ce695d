// SPDX-License-Identifier: Apache-2.0
//
// The log of a process: one JSON object a line on stderr,
//   {"time":"2026-01-31T12:00:00.123Z","level":"info","worker":"generator-0","event":"version_loaded","version":7}
// One line per change of state, none per token; an error that is returned is not logged as well.
// The log is the one object of a process that is reached without being passed, so that leaf code
// can report.
#ifndef TITAN_CORE_RUNTIME_LOG_H_
#define TITAN_CORE_RUNTIME_LOG_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace titan::runtime {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// debug, info, warning or error; InvalidArgument otherwise.
StatusOr<LogLevel> ParseLogLevel(std::string_view name);
std::string_view NameOf(LogLevel level);

// One key and its value. Lives only in the log call.
struct LogField {
  template <std::signed_integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<int64_t>(v)) {}
  template <std::unsigned_integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<uint64_t>(v)) {}
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const Status& v) : key(k), value(v.ToString()) {}

  std::string_view key;
  std::variant<int64_t, uint64_t, bool, double, std::string_view, std::string> value;
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  std::string worker;            // stamped on every line; empty: none
  const Clock* clock = nullptr;  // of the time stamps; null: the machine's. Must outlive the log
  std::function<void(std::string_view line)> write;  // instead of stderr, one call at a time
};

// Sets the log up; before it, lines of level info and above go to stderr. Not during other threads'
// log calls.
void InitLog(LogOptions options);
void SetLogLevel(LogLevel level);

bool LogEnabled(LogLevel level);
// Any thread. Event names are snake_case. Bytes that are not UTF-8 are replaced.
void LogEvent(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);

}  // namespace titan::runtime

// TITAN_LOG(kInfo, "version_loaded", {"version", v}, {"bytes", n});
#define TITAN_LOG(level, event, ...)                                                       \
  do {                                                                                     \
    if (::titan::runtime::LogEnabled(::titan::runtime::LogLevel::level)) {                 \
      ::titan::runtime::LogEvent(::titan::runtime::LogLevel::level, event, {__VA_ARGS__}); \
    }                                                                                      \
  } while (false)

#endif  // TITAN_CORE_RUNTIME_LOG_H_
