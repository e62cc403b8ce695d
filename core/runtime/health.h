// SPDX-License-Identifier: Apache-2.0
//
// The health listener of a daemon: plain HTTP/1.1 with GET /metrics, /healthz (alive) and /readyz
// (may get work), and nothing else. It is the one listener that may leave loopback without TLS, so
// it reads little: a request has at most 8 KiB of header and no body, a connection at most 5 s per
// request, and there are at most 32 of them.
#ifndef TITAN_CORE_RUNTIME_HEALTH_H_
#define TITAN_CORE_RUNTIME_HEALTH_H_

#include <chrono>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/runtime/metrics.h"

namespace titan::runtime {

// Thread-safe; serves from a thread of its own.
class HealthListener {
 public:
  // `listen` is host:port, port 0 for a free one. InvalidArgument: not an address; Unavailable: in
  // use. `metrics` must outlive the listener.
  static StatusOr<std::unique_ptr<HealthListener>> Create(const std::string& listen,
                                                          const Metrics& metrics);
  ~HealthListener();
  HealthListener(const HealthListener&) = delete;
  HealthListener& operator=(const HealthListener&) = delete;

  // What /readyz answers: 200, or 503 with the reason. Starts as not ready, "starting".
  void SetReady(bool ready, const std::string& reason);
  // The address with the real port.
  const std::string& address() const;

 private:
  struct Impl;
  explicit HealthListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct HealthAnswer {
  int http_status = 0;
  std::string body;
};
// GET `path` of a health listener, blocking. Unavailable: nobody answers; DeadlineExceeded.
StatusOr<HealthAnswer> GetHealth(const std::string& address, const std::string& path,
                                 std::chrono::milliseconds deadline);

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_HEALTH_H_
