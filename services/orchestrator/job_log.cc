// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/job_log.h"

#include <chrono>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace titan::orchestrator {

namespace asio = boost::asio;

void JobLog::Add(const std::string& job_id, v1::WatchJobResponse event) {
  if (event.event_case() == v1::WatchJobResponse::kMessage) {
    size_t& num = num_messages_[job_id];
    if (num >= kMaxMessages) return;
    if (++num == kMaxMessages) event.set_message("further messages are left out");
  }
  auto& events = events_[job_id];
  event.set_sequence(events.size() + 1);
  events.push_back(std::move(event));
  WakeAll();
}

const v1::WatchJobResponse* JobLog::Find(const std::string& job_id, uint64_t sequence) const {
  const auto found = events_.find(job_id);
  if (found == events_.end() || sequence == 0 || sequence > found->second.size()) return nullptr;
  return &found->second[sequence - 1];
}

const v1::WatchJobResponse* JobLog::Newest(const std::string& job_id) const {
  const auto found = events_.find(job_id);
  return found == events_.end() || found->second.empty() ? nullptr : &found->second.back();
}

asio::awaitable<void> JobLog::Wait() {
  auto timer = std::make_shared<asio::steady_timer>(control_, std::chrono::seconds(1));
  waiting_.insert(timer);
  boost::system::error_code woken;
  co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, woken));
  waiting_.erase(timer);
}

void JobLog::WakeAll() {
  for (const auto& timer : waiting_) timer->cancel();
}

}  // namespace titan::orchestrator
