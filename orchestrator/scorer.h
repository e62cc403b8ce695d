// SPDX-License-Identifier: Apache-2.0
//
// Sends finished samples to reward services and retries until the deadline. A fault of
// infrastructure never decides a sample, nor does an answer that is out of bounds; the first answer
// within them counts. A call may take half of the deadline, or the orchestrator's rpc_deadline_ms
// where that is longer, so that a service which hangs leaves time for another try. Not thread-safe;
// no I/O.
#ifndef TITAN_ORCHESTRATOR_SCORER_H_
#define TITAN_ORCHESTRATOR_SCORER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/actions.h"
#include "orchestrator/events.h"
#include "orchestrator/fleet.h"
#include "orchestrator/outbox.h"

namespace titan::orchestrator {

class Scorer {
 public:
  struct Item {
    GroupId group;
    uint32_t sample_index = 0;
    ScoreItem what;
  };
  struct Scored {
    GroupId group;
    uint32_t sample_index = 0;
    SampleId sample;
    ScoreOutcome outcome;
    std::string grader_version;
  };

  void Join(const WorkerReady& ready);
  bool Leave(const WorkerName& name, Instant now);
  bool HasGrader(const std::string& grader) const;
  // Of all services, each once, ascending.
  std::vector<std::string> graders() const;

  void Begin(std::string run_id, std::shared_ptr<const JobSpec> spec,
             std::shared_ptr<const Dataset> dataset);
  void Stop();
  void Add(Item item, Instant now);
  // The samples decided by this answer.
  std::vector<Scored> OnAnswer(const ScoreAnswered& event, Instant now);
  void Pump(Instant now, Outbox& out);
  // Why the job must end: a sample without a score past the deadline, or a request that can never
  // succeed. Names the service, what it did and what to do.
  std::optional<std::string> Expired(Instant now) const;
  // A service that registered and does not describe itself, which keeps it from joining.
  void OnSilent(const WorkerSilent& event);
  // For people, empty when there is none: what the services that do not join answer.
  std::string Silent() const;

 private:
  static constexpr size_t kItemsPerRequest = 32;
  struct Entry {
    Item item;
    Instant since;
    Instant ready_at;
    Backoff backoff;
    bool in_flight = false;
  };
  struct Request {
    WorkerName worker;
    std::vector<SampleId> samples;
    Instant sent;
  };
  void Retry(const std::vector<SampleId>& samples, Instant now, const std::string& why);

  std::string run_id_;
  std::shared_ptr<const JobSpec> spec_;
  std::shared_ptr<const Dataset> dataset_;
  std::map<std::string, WorkerReady> services_;  // by worker id
  std::map<SampleId, Entry> entries_;
  std::set<SampleId> waiting_;
  std::map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  std::string last_problem_;
  // Why a service does not join.
  struct SilentService {
    std::string incarnation;
    std::string reason;
  };
  std::map<std::string, SilentService> silent_;  // by worker id
  std::string hopeless_;                         // why no retry can succeed; empty: nothing
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_SCORER_H_
