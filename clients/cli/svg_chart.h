// SPDX-License-Identifier: Apache-2.0
//
// Charts as inline SVG for the report: no script, no font, no request; colours come from CSS
// variables of the page (--s0, --s1, ...), so that they follow light and dark. Every point has a
// tooltip. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLI_SVG_CHART_H_
#define TITAN_CLIENTS_CLI_SVG_CHART_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace titan::cli {

// & < > " ' as entities; bytes that a page must not hold become U+FFFD.
std::string EscapeHtml(std::string_view text);

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; y that is not finite leaves a gap
  int color = -1;                                 // of --s0..7; -1: its place among the series
};

struct ChartOptions {
  std::string title;
  std::string x_name = "step";
  std::string unit;                    // after the numbers of the y axis
  std::optional<double> y_min, y_max;  // default: from the data, zero included
  bool stacked_bars = false;           // each x is one bar, the series on top of each other
  bool whole_y = false;                // the y axis names whole numbers only
};

// A figure: title, legend when there are several series, the drawing. Says "no data" without
// points.
std::string Chart(const std::vector<ChartSeries>& series, const ChartOptions& options);

// Ascending round numbers that cover [low, high]: steps of 1, 2 or 5 times a power of ten, about
// `wanted` of them. REQUIRES: low <= high, finite.
std::vector<double> NiceTicks(double low, double high, int wanted);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_SVG_CHART_H_
