// SPDX-License-Identifier: Apache-2.0
//
// Who is there: registrations, heartbeats, contracts. Decisions without I/O; the service around it
// turns transitions into events of the engine. Not thread-safe.
#ifndef TITAN_ORCHESTRATOR_WORKER_REGISTRY_H_
#define TITAN_ORCHESTRATOR_WORKER_REGISTRY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "orchestrator/events.h"
#include "orchestrator/time.h"

namespace titan::orchestrator {

// The numerics contract of a worker (numerics.md section 10).
struct Contract {
  std::string forward;
  std::string training;
  std::map<std::string, std::string> items;
};

struct WorkerRecord {
  WorkerReady ready;
  std::string address;
  int64_t pid = 0;
  std::string machine;  // whose memory it takes; "": not known
  Contract contract;    // generators and trainers
  Instant last_heartbeat;
};

class WorkerRegistry {
 public:
  explicit WorkerRegistry(Duration timeout) : timeout_(timeout) {}

  struct Registered {
    std::optional<WorkerName> replaced;  // an earlier life of this worker id, lost now
    bool fresh = false;                  // false: this life was known and alive already
  };
  // The process that has the worker id of `record` now and may live beside it: another life, at
  // another address (two processes do not listen at one). Null: there is none. One that is known
  // to be gone is given up with Remove() before the new life registers.
  const WorkerRecord* Rival(const WorkerRecord& record) const;
  // InvalidArgument: a field is missing. FailedPrecondition: the contract differs from that of the
  // living trainer or generators; the message names the first differing item. AlreadyExists: a
  // rival has the worker id, and was heard lately. Unavailable: a rival that is suspect; ask again.
  StatusOr<Registered> Register(WorkerRecord record, Instant now);
  // NotFound: register again.
  Status Heartbeat(const WorkerName& name, Instant now);
  // Workers silent for longer than the timeout; they are forgotten. Call it often: when it was not
  // called for half of the timeout, this process was stopped, and the workers get that time on top.
  std::vector<WorkerName> Expire(Instant now);
  // Forgets a worker that is known to be gone. False: not known.
  bool Remove(const WorkerName& name);

  const WorkerRecord* Find(const std::string& worker_id) const;
  const std::map<std::string, WorkerRecord>& workers() const { return workers_; }
  // ready, or suspect when half of the timeout is over.
  std::string StateOf(const WorkerRecord& record, Instant now) const;

 private:
  Status CheckContract(const WorkerRecord& record) const;
  Status CheckRival(const WorkerRecord& record, Instant now) const;

  const Duration timeout_;
  std::optional<Instant> last_expire_;
  std::map<std::string, WorkerRecord> workers_;  // by worker id
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_WORKER_REGISTRY_H_
