// SPDX-License-Identifier: Apache-2.0
//
// Log lines of daemons as people read them, and reading files that grow. FormatLogLine is pure; a
// LogFile is for one thread.
#ifndef TITAN_CLIENTS_CLI_LOG_VIEW_H_
#define TITAN_CLIENTS_CLI_LOG_VIEW_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "clients/cluster/terminal.h"

namespace titan::cli {

// "12:00:00.123 generator-0  info   version_loaded  version=7"; a line that is no JSON log line
// stays as it is, after the daemon's name.
std::string FormatLogLine(const std::string& line, const std::string& daemon,
                          const cluster::Terminal& terminal);
// Its "time", or "" when it has none.
std::string TimeOfLogLine(const std::string& line);

// A log file from its start on, whole lines only; a file that was replaced or cut is read again
// from its start.
class LogFile {
 public:
  LogFile(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {}
  const std::string& name() const { return name_; }
  // The lines that came since the last call. A file that is not there has none.
  std::vector<std::string> ReadNew();

 private:
  const std::string name_;
  const std::string path_;
  ino_t inode_ = 0;
  uint64_t offset_ = 0;
  std::string partial_;
};

struct LogLine {
  std::string time;  // of the line, or of the one before it
  std::string daemon;
  std::string text;
};
// All lines of all files in order of time; lines of one file stay in their order. The last `limit`
// of them (0: all).
std::vector<LogLine> MergeLogs(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& lines_by_daemon,
    size_t limit);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_LOG_VIEW_H_
