// SPDX-License-Identifier: Apache-2.0
//
// The journal: facts of all jobs, durable. Records lie in a key-value store, token arrays in a
// segment log beside it; a record that points into a segment is written after the segment is
// synced.
//
//   f/<job id>/<big-endian sequence>   storage.v1.Fact
//   i/<job id>/<big-endian sequence>   empty: this fact is one that the list of jobs is made of
//
// Commit blocks; call it from one thread at a time (the driver's group commit: one call for all
// facts that came up meanwhile). Reads may run beside it.
#ifndef TITAN_ORCHESTRATOR_JOURNAL_H_
#define TITAN_ORCHESTRATOR_JOURNAL_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/storage/key_value_store.h"
#include "core/storage/segment_log.h"
#include "orchestrator/facts.h"

namespace titan::storage::v1 {
class Fact;
}

namespace titan::orchestrator {

// How reports and specs become bytes: their wire messages belong to services.
struct JournalCodec {
  std::function<std::string(const StepReport&)> encode_step;
  std::function<StatusOr<StepReport>(const std::string&)> decode_step;
  std::function<std::string(const EvaluationReport&)> encode_evaluation;
  std::function<StatusOr<EvaluationReport>(const std::string&)> decode_evaluation;
  std::function<StatusOr<JobSpec>(const std::string&)> decode_spec;
};

// A job as the journal tells it.
struct JournaledJob {
  JobInfo info;
  std::string spec_bytes;
  bool cancelled = false;                 // STOPPING, and because of a cancellation
  std::vector<std::string> past_run_ids;  // that it had before restarts, the first one first
  // JobSubmitted, StateChanged, StepDone, EvaluationDone, CommandGiven, MessageTold.
  std::vector<Fact> facts;
};

// What a fact changes in what is told of its job. The spec, which JobSubmitted has as bytes, and
// the data stay as they are.
void Apply(const Fact& fact, JobInfo* job);

class Journal {
 public:
  // Both parts must be fresh or belong together. DataLoss, Unavailable: as the store.
  static StatusOr<std::unique_ptr<Journal>> Create(std::unique_ptr<storage::KeyValueStore> store,
                                                   std::unique_ptr<storage::SegmentLog> segments,
                                                   JournalCodec codec);

  // Appends the facts; they survive power loss once it returns OK. After a failure the journal must
  // be reopened. ResourceExhausted: disk full. Unavailable: another failure of the disk.
  Status Commit(const std::vector<Fact>& facts);

  // All jobs, in order of submission.
  StatusOr<std::vector<JournaledJob>> ReadJobs() const;
  // All facts of a job in order. with_tokens: replies are read from the segments; else they are
  // null.
  StatusOr<std::vector<Fact>> ReadFacts(const std::string& job_id, bool with_tokens) const;
  // The same with the replies of chosen samples only: `with_tokens` is asked with reply null.
  using WithTokens = std::function<bool(const SampleGenerated&)>;
  StatusOr<std::vector<Fact>> ReadFacts(const std::string& job_id,
                                        const WithTokens& with_tokens) const;
  // The canonical form of a job's facts. Codes as above.
  StatusOr<std::vector<std::string>> ReadCanonical(const std::string& job_id) const;

 private:
  Journal(std::unique_ptr<storage::KeyValueStore> store,
          std::unique_ptr<storage::SegmentLog> segments, JournalCodec codec);
  StatusOr<storage::v1::Fact> Encode(const Fact& fact);
  StatusOr<Fact> Decode(const std::string& job_id, std::string_view bytes,
                        const WithTokens& with_tokens) const;

  const std::unique_ptr<storage::KeyValueStore> store_;
  const std::unique_ptr<storage::SegmentLog> segments_;
  const JournalCodec codec_;
  std::map<std::string, uint64_t> next_;  // sequence number by job
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_JOURNAL_H_
