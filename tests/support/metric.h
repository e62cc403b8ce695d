// SPDX-License-Identifier: Apache-2.0
//
// One number of a daemon's metrics, as its health listener tells it. Test code.
#ifndef TITAN_TESTS_SUPPORT_METRIC_H_
#define TITAN_TESTS_SUPPORT_METRIC_H_

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "core/runtime/endpoint.h"
#include "core/runtime/health.h"

namespace titan::testing {

// series: the name, with its labels in braces as they are exposed. -1: it is not told.
inline double MetricOf(const std::string& data_folder, const std::string& worker_id,
                       const std::string& series) {
  const auto endpoint = runtime::ReadEndpoint(data_folder, worker_id);
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  if (!endpoint.ok()) return -1;
  const auto answer =
      runtime::GetHealth(endpoint->health_address, "/metrics", std::chrono::seconds(5));
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return -1;
  const std::string line = "\n" + series + " ";
  const size_t at = answer->body.find(line);
  return at == std::string::npos ? -1 : std::stod(answer->body.substr(at + line.size()));
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_METRIC_H_
