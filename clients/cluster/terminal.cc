// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace titan::cluster {

bool IsTerminal(int fd) { return isatty(fd) != 0; }

Terminal Terminal::Stdout() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool colors = no_color == nullptr || no_color[0] == '\0';
  if (!IsTerminal(STDOUT_FILENO)) return Terminal(false);
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return Terminal(colors, known ? size.ws_col : 0);
}

std::string Terminal::Paint(Color color, std::string_view text) const {
  if (!colors_ || color == Color::kNone) return std::string(text);
  const char* code = color == Color::kRed      ? "31"
                     : color == Color::kGreen  ? "32"
                     : color == Color::kYellow ? "33"
                                               : "1";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

size_t VisibleWidth(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {  // a colour: up to its m
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

std::string Printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto escaped = [&](unsigned char c) {
    return std::string("\\x") + kDigits[c >> 4] + kDigits[c & 15];
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080..U+009F, the other control characters
      out += escaped(static_cast<unsigned char>(next));
      ++i;
    } else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      out += escaped(c);
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string PrintableLine(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += c;
    }
  }
  return out;
}

namespace {

constexpr size_t kMinCut = 8;

// The first `columns` columns of a text.
std::string_view Head(std::string_view text, size_t columns) {
  size_t i = 0;
  for (size_t width = 0; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts && width++ == columns) break;
  }
  return text.substr(0, i);
}

}  // namespace

std::string FormatTable(const std::vector<std::vector<Cell>>& rows, const Terminal& terminal) {
  std::vector<std::vector<std::string>> texts;
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    auto& shown = texts.emplace_back();
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      shown.push_back(PrintableLine(row[i].text));
      widths[i] = std::max(widths[i], VisibleWidth(shown[i]));
    }
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    // Nothing follows but empty cells: no spaces at the end of the line.
    size_t cells = texts[r].size();
    while (cells > 1 && texts[r][cells - 1].empty()) --cells;
    size_t column = 0;
    for (size_t i = 0; i < cells; ++i) {
      std::string& cell = texts[r][i];
      const size_t width = VisibleWidth(cell);
      const bool last = i + 1 == cells;
      if (last && terminal.width() > 0 && column + width > terminal.width()) {
        const size_t room = terminal.width() > column ? terminal.width() - column : 0;
        const size_t kept = std::max(room, kMinCut) - 3;
        if (width > kept + 3) cell = std::string(Head(cell, kept)) + "...";
      }
      text += terminal.Paint(rows[r][i].color, cell);
      if (!last) text += std::string(widths[i] - width + 2, ' ');
      column += widths[i] + 2;
    }
    text += "\n";
  }
  return text;
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<Cell>> cells;
  for (const auto& row : rows) cells.emplace_back(row.begin(), row.end());
  return FormatTable(cells, Terminal(false));
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<long>(std::lround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string FormatPlot(const std::vector<PlotSeries>& series, double x_max,
                       const std::string& x_name, int width, int height) {
  std::vector<std::string> grid(static_cast<size_t>(height) + 1,
                                std::string(static_cast<size_t>(width) + 1, ' '));
  std::string legend;
  for (const PlotSeries& one : series) {
    for (const auto& [x, y] : one.points) {
      const double column = std::clamp(x / x_max, 0.0, 1.0) * width;
      const double row = (1 - std::clamp(y, 0.0, 1.0)) * height;
      grid[static_cast<size_t>(std::lround(row))][static_cast<size_t>(std::lround(column))] =
          one.mark;
    }
    legend += fmt::format("{}{} {}", legend.empty() ? "" : "   ", one.mark, one.name);
  }
  std::string text;
  for (int row = 0; row <= height; ++row) {
    const double y = 1 - static_cast<double>(row) / height;
    const bool labelled = row % 3 == 0;
    std::string line = labelled ? fmt::format("{:4.2f} |", y) : std::string("     |");
    line += grid[static_cast<size_t>(row)];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  text += "     +" + std::string(static_cast<size_t>(width) + 1, '-') + "\n";
  const std::string end = fmt::format("{:g}", x_max);
  text += fmt::format("      0{:>{}}\n", end, width);
  text += fmt::format("      {}:  {}\n", x_name, legend);
  return text;
}

}  // namespace titan::cluster
