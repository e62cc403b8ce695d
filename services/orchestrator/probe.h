// SPDX-License-Identifier: Apache-2.0
//
// Whether the process behind an address is there: a broken call alone does not tell its end from
// its refusal.
#ifndef TITAN_SERVICES_ORCHESTRATOR_PROBE_H_
#define TITAN_SERVICES_ORCHESTRATOR_PROBE_H_

#include <functional>
#include <string>

#include <boost/asio/any_io_executor.hpp>

namespace titan::orchestrator {

enum class Presence {
  kListens,
  kGone,     // nobody listens there
  kUnknown,  // this process cannot find out, nobody answered in time (a stopped process takes no
             // more than its backlog), or the address is a name, which is not looked up
};

// Connects to HOST:PORT and hangs up, up to four times with pauses between. `done` runs on
// `executor`, once, within five seconds, or not at all where that ends before.
void ProbePeer(const boost::asio::any_io_executor& executor, const std::string& address,
               std::function<void(Presence)> done);

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_PROBE_H_
