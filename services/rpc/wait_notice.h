// SPDX-License-Identifier: Apache-2.0
//
// When a wait for a peer is worth a line in the log: soon, so that nobody looks at a silent daemon,
// then seldom. A value, one thread at a time.
#ifndef TITAN_SERVICES_RPC_WAIT_NOTICE_H_
#define TITAN_SERVICES_RPC_WAIT_NOTICE_H_

#include <chrono>
#include <optional>

#include "core/base/clock.h"

namespace titan::rpc {

inline constexpr std::chrono::milliseconds kFirstNotice{2500};
inline constexpr std::chrono::seconds kNextNotice{60};

class WaitNotice {
 public:
  // To be called after each attempt that failed. True when a line is due: kFirstNotice after the
  // wait began (with the first call since Over), then every kNextNotice.
  bool Due(Instant now) {
    if (!began_.has_value()) {
      began_ = now;
      next_ = now + kFirstNotice;
    }
    if (now < next_) return false;
    next_ = now + kNextNotice;
    return true;
  }
  // How long the wait has lasted.
  std::chrono::seconds Waited(Instant now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - began_.value_or(now));
  }
  void Over() { began_.reset(); }

 private:
  std::optional<Instant> began_;
  Instant next_{};
};

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_WAIT_NOTICE_H_
