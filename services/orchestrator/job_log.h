// SPDX-License-Identifier: Apache-2.0
//
// The events of each job, numbered 1, 2, ..., and who waits for more of them. In memory: a restart
// rebuilds them from the journal, with the same numbers. Control strand only.
#ifndef TITAN_SERVICES_ORCHESTRATOR_JOB_LOG_H_
#define TITAN_SERVICES_ORCHESTRATOR_JOB_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::orchestrator {

class JobLog {
 public:
  explicit JobLog(boost::asio::any_io_executor control) : control_(control) {}

  // Fills in the sequence number; wakes who waits.
  void Add(const std::string& job_id, v1::WatchJobResponse event);
  bool Knows(const std::string& job_id) const { return events_.count(job_id) != 0; }
  // The event of this number; null: not there yet.
  const v1::WatchJobResponse* Find(const std::string& job_id, uint64_t sequence) const;
  // The last event; null: none yet.
  const v1::WatchJobResponse* Newest(const std::string& job_id) const;
  // Returns after the next event of any job, after one second, or after WakeAll.
  boost::asio::awaitable<void> Wait();
  void WakeAll();

 private:
  static constexpr size_t kMaxMessages = 10000;  // a job that talks without end is cut short

  const boost::asio::any_io_executor control_;
  std::map<std::string, std::vector<v1::WatchJobResponse>> events_;
  std::map<std::string, size_t> num_messages_;
  std::set<std::shared_ptr<boost::asio::steady_timer>> waiting_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_JOB_LOG_H_
