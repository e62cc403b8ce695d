// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace titan::cli {
namespace {

// One drawing is 360 wide, so that its text is readable on a phone and on a wide page alike.
constexpr double kWidth = 360, kHeight = 190;
constexpr double kLeft = 44, kRight = 10, kTop = 10, kBottom = 30;
constexpr size_t kNumColors = 8;

size_t ColorOf(const ChartSeries& series, size_t place) {
  return (series.color >= 0 ? static_cast<size_t>(series.color) : place) % kNumColors;
}

std::string Number(double value) {
  if (value == 0) return "0";
  const double size = std::fabs(value);
  if (size >= 1e6 || size < 1e-3) return fmt::format("{:.1e}", value);
  if (size >= 1e4) return fmt::format("{:.0f}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

struct Frame {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  double X(double x) const {
    return kLeft + (x - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight);
  }
  double Y(double y) const {
    return kHeight - kBottom - (y - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom);
  }
};

Frame FrameOf(const std::vector<ChartSeries>& series, const ChartOptions& options) {
  Frame frame;
  double low = 0, high = 0;
  bool any = false;
  std::map<double, double> sums;
  for (const ChartSeries& one : series) {
    for (const auto& [x, y] : one.points) {
      if (!std::isfinite(y)) continue;
      frame.x_low = any ? std::min(frame.x_low, x) : x;
      frame.x_high = any ? std::max(frame.x_high, x) : x;
      any = true;
      low = std::min(low, y);
      high = std::max(high, options.stacked_bars ? (sums[x] += y) : y);
    }
  }
  if (options.stacked_bars) {
    frame.x_low -= 0.5;
    frame.x_high += 0.5;
  } else if (frame.x_high == frame.x_low) {
    frame.x_low -= 0.5;
    frame.x_high += 0.5;
  }
  if (high == low) high = low + 1;
  const auto ticks = NiceTicks(options.y_min.value_or(low), options.y_max.value_or(high), 4);
  frame.y_low = options.y_min.value_or(ticks.front());
  frame.y_high = options.y_max.value_or(ticks.back());
  return frame;
}

std::string Axes(const Frame& frame, const ChartOptions& options) {
  std::string svg;
  for (const double y : NiceTicks(frame.y_low, frame.y_high, 4)) {
    if (y < frame.y_low - 1e-12 || y > frame.y_high + 1e-12) continue;
    if (options.whole_y && y != std::floor(y)) continue;
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
        kWidth - kRight, frame.Y(y), frame.Y(y));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}{}</text>", kLeft - 5,
                       frame.Y(y) + 3.5, Number(y), EscapeHtml(options.unit));
  }
  for (const double x : NiceTicks(frame.x_low, frame.x_high, 6)) {
    if (x < frame.x_low || x > frame.x_high || x != std::floor(x)) continue;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                       frame.X(x), kHeight - kBottom + 14, Number(x));
  }
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                     kWidth - kRight, kHeight - 3, EscapeHtml(options.x_name));
  return svg;
}

std::string Tooltip(const ChartSeries& series, const ChartOptions& options, double x, double y) {
  return fmt::format("<title>{} {}: {} {}{}</title>", EscapeHtml(options.x_name), Number(x),
                     EscapeHtml(series.name), Number(y), EscapeHtml(options.unit));
}

std::string Lines(const std::vector<ChartSeries>& series, const ChartOptions& options,
                  const Frame& frame) {
  std::string svg;
  for (size_t i = 0; i < series.size(); ++i) {
    const std::string color = fmt::format("var(--s{})", ColorOf(series[i], i));
    std::string path;
    bool open = false;
    for (const auto& [x, y] : series[i].points) {
      if (!std::isfinite(y)) {
        open = false;
        continue;
      }
      const double at = frame.Y(std::clamp(y, frame.y_low, frame.y_high));
      path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", frame.X(x), at);
      open = true;
    }
    svg +=
        fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>", path, color);
    const size_t n = series[i].points.size();
    const double radius = n > 60 ? 1.5 : n > 20 ? 2.2 : 3;
    for (const auto& [x, y] : series[i].points) {
      if (!std::isfinite(y)) continue;
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\">{}</circle>",
                         frame.X(x), frame.Y(std::clamp(y, frame.y_low, frame.y_high)), radius,
                         color, Tooltip(series[i], options, x, y));
    }
  }
  return svg;
}

std::string Bars(const std::vector<ChartSeries>& series, const ChartOptions& options,
                 const Frame& frame) {
  std::string svg;
  std::map<double, double> tops;
  const double width = std::max(1.0, (frame.X(1) - frame.X(0)) * 0.8);
  for (size_t i = 0; i < series.size(); ++i) {
    for (const auto& [x, y] : series[i].points) {
      if (!std::isfinite(y) || y <= 0) continue;
      const double base = tops[x];
      tops[x] = base + y;
      const double top = frame.Y(base + y);
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" "
          "fill=\"var(--s{})\">{}"
          "</rect>",
          frame.X(x) - width / 2, top, width, frame.Y(base) - top, ColorOf(series[i], i),
          Tooltip(series[i], options, x, y));
    }
  }
  return svg;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool allowed = byte >= 0x20 || c == '\n' || c == '\t';
        out += allowed && byte != 0x7f ? std::string(1, c) : std::string("\xef\xbf\xbd");
      }
    }
  }
  return out;
}

std::vector<double> NiceTicks(double low, double high, int wanted) {
  if (high <= low) return {low};
  const double raw = (high - low) / wanted;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power * 10;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= power * factor * 1.0001) {
      step = power * factor;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  for (double i = first; i * step < high + step * (1 - 1e-9); ++i) ticks.push_back(i * step);
  if (ticks.back() < high - step * 1e-9) ticks.push_back(ticks.back() + step);
  return ticks;
}

std::string Chart(const std::vector<ChartSeries>& series, const ChartOptions& options) {
  bool any = false;
  for (const ChartSeries& one : series) {
    for (const auto& point : one.points) any = any || std::isfinite(point.second);
  }
  std::string html = fmt::format("<figure><figcaption>{}</figcaption>", EscapeHtml(options.title));
  if (!any) return html + "<p class=\"none\">no data</p></figure>\n";
  if (series.size() > 1) {
    html += "<p class=\"legend\">";
    for (size_t i = 0; i < series.size(); ++i) {
      html += fmt::format("<span><i style=\"background:var(--s{})\"></i>{}</span>",
                          ColorOf(series[i], i), EscapeHtml(series[i].name));
    }
    html += "</p>";
  }
  const Frame frame = FrameOf(series, options);
  html += fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight,
                      EscapeHtml(options.title));
  html += Axes(frame, options);
  html += options.stacked_bars ? Bars(series, options, frame) : Lines(series, options, frame);
  return html + "</svg></figure>\n";
}

}  // namespace titan::cli
