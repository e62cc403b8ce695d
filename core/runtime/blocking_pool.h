// SPDX-License-Identifier: Apache-2.0
//
// A few threads for calls that block (RocksDB, files), so that the control strand never does.
#ifndef TITAN_CORE_RUNTIME_BLOCKING_POOL_H_
#define TITAN_CORE_RUNTIME_BLOCKING_POOL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/bounded_queue.h"
#include "core/base/status.h"

namespace titan::runtime {

namespace asio = boost::asio;

struct BlockingPoolOptions {
  size_t threads = 2;
  size_t max_queued = 1024;  // more work is refused
};

// Thread-safe. The destructor runs what is queued, then joins.
class BlockingPool {
 public:
  explicit BlockingPool(BlockingPoolOptions options = {});
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  // ResourceExhausted when the queue is full, Cancelled after Stop. The work must not throw.
  Status Post(std::function<void()> work);

  // Runs fn() here and resumes the coroutine on its own executor with the result. fn returns Status
  // or StatusOr<T>; the pool's own refusals come back the same way. Takes a named callable, which
  // is copied, and no temporary: g++ 12 destroys a temporary closure (or aggregate) inside a
  // co_await expression twice.
  template <typename Fn>
  asio::awaitable<std::invoke_result_t<const Fn&>> Run(const Fn& fn);
  template <typename Fn>
  asio::awaitable<std::invoke_result_t<const Fn&>> Run(const Fn&& fn) = delete;

  size_t queued() const { return queue_.size(); }
  // Refuses new work, runs what is queued, joins. Idempotent.
  void Stop();

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::jthread> threads_;
};

template <typename Fn>
asio::awaitable<std::invoke_result_t<const Fn&>> BlockingPool::Run(const Fn& fn) {
  using Result = std::invoke_result_t<const Fn&>;
  Fn copy = fn;
  auto start = [this](auto handler, Fn work) {
    auto executor = asio::prefer(asio::get_associated_executor(handler),
                                 asio::execution::outstanding_work.tracked);
    // std::function wants copies, a handler cannot be copied: shared until it is called, once.
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    const auto finish = [executor, shared](Result result) {
      asio::post(executor,
                 [shared, result = std::make_shared<Result>(std::move(result))]() mutable {
                   (*shared)(std::move(result));
                 });
    };
    const Status posted = Post([finish, work = std::move(work)]() mutable { finish(work()); });
    if (!posted.ok()) finish(Result(posted));
  };
  auto result =
      co_await asio::async_initiate<decltype(asio::use_awaitable), void(std::shared_ptr<Result>)>(
          std::move(start), asio::use_awaitable, std::move(copy));
  co_return std::move(*result);
}

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_BLOCKING_POOL_H_
