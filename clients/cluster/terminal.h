// SPDX-License-Identifier: Apache-2.0
//
// What people see: colours (none with NO_COLOR or when output is not a terminal), tables,
// durations, plots.
#ifndef TITAN_CLIENTS_CLUSTER_TERMINAL_H_
#define TITAN_CLIENTS_CLUSTER_TERMINAL_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace titan::cluster {

enum class Color { kNone, kRed, kGreen, kYellow, kBold };

// Pure after construction.
class Terminal {
 public:
  // Of stdout: is it a terminal, is NO_COLOR set.
  static Terminal Stdout();
  explicit Terminal(bool colors) : colors_(colors) {}
  std::string Paint(Color color, std::string_view text) const;

 private:
  bool colors_;
};

// Is this file descriptor a terminal?
bool IsTerminal(int fd);

// Columns that the text takes: code points, colours not counted.
size_t VisibleWidth(std::string_view text);
// Text of a model or of a file for a terminal: control characters but newline and tab become \xNN,
// for they could move the cursor, change colours or send keys.
std::string Printable(std::string_view text);
// Columns padded to their widest cell, two spaces between; the first row is the head.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);
// "45s", "3m05s", "1h02m".
std::string FormatSeconds(double seconds);

struct PlotSeries {
  char mark = '*';
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y
};
// A plot in characters, y from 0 to 1, x from 0 to x_max. REQUIRES: x_max > 0.
std::string FormatPlot(const std::vector<PlotSeries>& series, double x_max,
                       const std::string& x_name, int width = 64, int height = 12);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_TERMINAL_H_
