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
  // Of stdout: is it a terminal and how wide, is NO_COLOR set.
  static Terminal Stdout();
  // `width` in columns; 0: lines are never cut (a file or a pipe).
  explicit Terminal(bool colors, size_t width = 0) : colors_(colors), width_(width) {}
  std::string Paint(Color color, std::string_view text) const;
  size_t width() const { return width_; }
  Terminal Uncut() const { return Terminal(colors_); }

 private:
  bool colors_;
  size_t width_;
};

// A cell of a table: text from anywhere, and the colour that it is shown in.
struct Cell {
  Cell(std::string t, Color c = Color::kNone) : text(std::move(t)), color(c) {}  // NOLINT
  Cell(const char* t, Color c = Color::kNone) : text(t), color(c) {}             // NOLINT
  std::string text;
  Color color;
};

// Is this file descriptor a terminal?
bool IsTerminal(int fd);

// Columns that the text takes: code points, colours not counted.
size_t VisibleWidth(std::string_view text);
// Text of a model or of a file for a terminal: control characters but newline and tab become \xNN,
// for they could move the cursor, change colours or send keys.
std::string Printable(std::string_view text);
// The same for a name or a reason, which has one line: newline and tab become \n and \t.
std::string PrintableLine(std::string_view text);
// One word of a shell's command line: as it stands when it is plain, quoted otherwise. Of texts
// that tell people what to run.
std::string ShellWord(std::string_view text);
// Columns padded to their widest cell, two spaces between; the first row is the head. Cells are
// shown as PrintableLine. A row that is wider than the terminal loses the end of its last cell,
// which then ends in "..."; eight columns of it stay in any case.
std::string FormatTable(const std::vector<std::vector<Cell>>& rows, const Terminal& terminal);
// Without colours, uncut.
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
