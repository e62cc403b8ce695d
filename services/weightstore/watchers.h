// SPDX-License-Identifier: Apache-2.0
//
// Who waits for news of versions. News come from any thread, waiting is on the control strand.
#ifndef TITAN_SERVICES_WEIGHTSTORE_WATCHERS_H_
#define TITAN_SERVICES_WEIGHTSTORE_WATCHERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

namespace titan::weightstore {

// Shared with the store that wakes it, which may outlive the service.
class Watchers : public std::enable_shared_from_this<Watchers> {
 public:
  explicit Watchers(boost::asio::any_io_executor control) : control_(control) {}

  // Any thread; never waits, so it may be called under a lock. Several calls may become one.
  void Wake();

  // Control strand: counts the news, to be read before one looks for them.
  uint64_t news() const { return news_; }
  // Returns once there are news beyond `seen`.
  boost::asio::awaitable<void> Wait(uint64_t seen);

 private:
  const boost::asio::any_io_executor control_;
  std::atomic<bool> waking_{false};
  uint64_t news_ = 0;
  std::set<std::shared_ptr<boost::asio::steady_timer>> waiting_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_WATCHERS_H_
