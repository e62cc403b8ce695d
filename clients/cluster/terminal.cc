// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace titan::cluster {

bool IsTerminal(int fd) { return isatty(fd) != 0; }

Terminal Terminal::Stdout() {
  const char* no_color = std::getenv("NO_COLOR");
  return Terminal(IsTerminal(STDOUT_FILENO) && (no_color == nullptr || no_color[0] == '\0'));
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

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], VisibleWidth(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      // Nothing follows but empty cells: no spaces at the end of the line.
      const bool last = std::all_of(row.begin() + static_cast<ptrdiff_t>(i) + 1, row.end(),
                                    [](const std::string& cell) { return cell.empty(); });
      if (last) break;
      line += std::string(widths[i] - VisibleWidth(row[i]) + 2, ' ');
    }
    text += line + "\n";
  }
  return text;
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
