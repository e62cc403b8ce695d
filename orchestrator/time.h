// SPDX-License-Identifier: Apache-2.0
//
// Time as the engine sees it: instants that the driver hands in. Microseconds since the Unix epoch,
// never going backwards (the driver adds a monotonic clock to one reading of the wall clock). Used
// for deadlines, back-off and reports only, never for a decision that changes a result.
#ifndef TITAN_ORCHESTRATOR_TIME_H_
#define TITAN_ORCHESTRATOR_TIME_H_

#include <chrono>
#include <cstdint>

namespace titan::orchestrator {

using Duration = std::chrono::microseconds;
using Instant = std::chrono::time_point<std::chrono::system_clock, Duration>;

inline int64_t UnixMs(Instant t) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(t.time_since_epoch()).count();
}
inline double Seconds(Duration d) { return static_cast<double>(d.count()) * 1e-6; }
inline Duration Millis(uint64_t ms) { return Duration(static_cast<int64_t>(ms) * 1000); }

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_TIME_H_
