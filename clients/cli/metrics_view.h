// SPDX-License-Identifier: Apache-2.0
//
// Prometheus text as people read it. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLI_METRICS_VIEW_H_
#define TITAN_CLIENTS_CLI_METRICS_VIEW_H_

#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace titan::cli {

struct MetricValue {
  std::string name;  // with _sum or _count of a histogram
  std::map<std::string, std::string> labels;
  double value = 0;
};

// The samples of an exposition (version 0.0.4), in order; buckets of histograms are left out.
// DataLoss: a line is no sample.
StatusOr<std::vector<MetricValue>> ParseMetrics(const std::string& text);

// NotFound for a name that stands in none of `names`; names the nearest metric or word of one.
Status NoSuchMetric(const std::string& wanted, const std::vector<std::string>& names,
                    const std::string& data);

// {a="b", c="d"}; "" without labels.
std::string FormatLabels(const std::map<std::string, std::string>& labels);
// Bytes and seconds with their units, whole numbers whole.
std::string FormatValue(const MetricValue& metric);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_METRICS_VIEW_H_
