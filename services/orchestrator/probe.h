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

// Connects to HOST:PORT and hangs up, up to four times with pauses between. `done` runs on
// `executor`, once, within five seconds; true: somebody listens there, or the address is a name,
// which is not looked up, or this process cannot find out.
void ProbePeer(const boost::asio::any_io_executor& executor, const std::string& address,
               std::function<void(bool listens)> done);

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_PROBE_H_
