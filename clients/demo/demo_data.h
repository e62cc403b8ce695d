// SPDX-License-Identifier: Apache-2.0
//
// The demo's task: additions of two numbers from 0 to 20, and the job that trains them. Pure
// functions.
#ifndef TITAN_CLIENTS_DEMO_DEMO_DATA_H_
#define TITAN_CLIENTS_DEMO_DEMO_DATA_H_

#include <cstdint>
#include <string>

#include "titan/config/v1/job.pb.h"

namespace titan::demo {

inline constexpr int kLargestOperand = 20;
inline constexpr uint32_t kHeldOut = 200;  // of the 441 questions

// 441 lines {"id": "add-00-05", "prompt": [{"role": "user", "content": "What is 0 + 5?"}],
// "answer": "5"}.
std::string DataText();

struct DemoJob {
  std::string model_path;
  std::string data_path;
  uint32_t steps = 40;
  uint64_t seed = 1;
};
config::v1::JobSpec MakeJob(const DemoJob& demo);

}  // namespace titan::demo

#endif  // TITAN_CLIENTS_DEMO_DEMO_DATA_H_
