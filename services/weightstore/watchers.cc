// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/watchers.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace titan::weightstore {

namespace asio = boost::asio;

void Watchers::Wake() {
  if (waking_.exchange(true)) return;  // the strand has yet to hear of the last news
  asio::post(control_, [self = shared_from_this()] {
    self->waking_ = false;  // before the news are looked for
    ++self->news_;
    for (const auto& timer : self->waiting_) timer->cancel();
  });
}

asio::awaitable<void> Watchers::Wait(uint64_t seen) {
  const auto self = shared_from_this();
  while (news_ == seen) {
    auto timer = std::make_shared<asio::steady_timer>(control_);
    timer->expires_at(asio::steady_timer::time_point::max());
    waiting_.insert(timer);
    boost::system::error_code woken;
    co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, woken));
    waiting_.erase(timer);
  }
}

}  // namespace titan::weightstore
