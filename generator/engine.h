// SPDX-License-Identifier: Apache-2.0
//
// The generator's engine: continuous batching of groups over a paged key-value cache.
//
//   Submit(group) -> [queued] -> admit: prompt pages -> prefill in chunks -> first token of every
//   sample
//     -> samples start as pages and places allow, sharing the prompt's full pages -> one token a
//     step each
//     -> finished: SampleResult
//
// One Step is one forward of the model under one version: the decode rows of that version's running
// samples, then prompt chunks up to the row limit. The version is that of the most urgent work
// (lowest priority number, then oldest). Pages are reserved for a sample's whole length when it
// starts, so nothing is ever preempted; a new prompt is admitted only when every sample of the
// admitted ones has started. In one step end at most so many prompts that the rows of logits that
// were planned suffice: a step takes no memory but small lists.
//
// What a sample's tokens and log-probs are depends only on (weights, prompt, sampling parameters,
// seed, sample id): the kernels guarantee it (numerics.md), scheduling here is free (I3). Positions
// count from the start of the prompt; sampling of the token at position p uses counter (sample id,
// p).
//
// Not thread-safe: one engine thread. No I/O, no clock.
#ifndef TITAN_GENERATOR_ENGINE_H_
#define TITAN_GENERATOR_ENGINE_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/kernels/pool.h"
#include "core/kernels/sampling.h"
#include "core/model/decoder.h"
#include "core/model/kv_cache.h"
#include "core/model/memory.h"
#include "generator/page_pool.h"

namespace titan::generator {

// A set of weights that a generator can hold: a version of the ring, or its evaluation copy.
struct VersionKey {
  std::string run_id;
  PolicyVersion version = 0;
  bool evaluation = false;

  friend auto operator<=>(const VersionKey&, const VersionKey&) = default;
};
std::string ToString(const VersionKey& key);

enum class FinishReason { kStop, kLength };

struct SampleSpec {
  uint32_t index = 0;
  SampleId id;
};

struct GroupRequest {
  VersionKey version;
  GroupId group;
  uint64_t seed = 0;
  uint64_t priority = 0;  // lower first
  std::vector<TokenId> prompt;
  std::vector<SampleSpec> samples;
  double temperature = 1.0;
  int32_t max_new_tokens = 0;
  std::vector<TokenId> stop_tokens;
};

struct SampleResult {
  uint64_t request = 0;  // as returned by Submit
  uint32_t sample_index = 0;
  std::vector<TokenId> tokens;   // the reply; a stop token is its last
  std::vector<float> log_probs;  // parallel to tokens
  FinishReason reason = FinishReason::kLength;
  uint32_t sequences_running_max = 0;  // largest batch (in sequences) the sample was part of
  uint64_t batch_fingerprint = 0;      // hash over the compositions of those batches
};

class Engine {
 public:
  struct Limits {
    int max_running = 64;      // samples that decode at once
    int max_batch_rows = 512;  // rows of one forward
    int64_t kv_cache_bytes = int64_t{512} << 20;
    int max_queued_groups = 256;
  };

  // Bytes that an engine takes in Create and keeps, and what it cannot be without. Kernels keep
  // scratch for each thread on top, lists of requests are small.
  struct Memory {
    int64_t cache = 0;
    int64_t activations = 0;  // of one step
    int64_t logits = 0;
    int64_t rope = 0;     // the decoder's, which has them already
    int64_t weights = 0;  // of versions in memory of this process; mapped ones are the store's
    int64_t total() const { return cache + activations + logits + rope + weights; }
  };
  // own_versions: how many have weights in memory of this process.
  static Memory MemoryNeeded(const model::Decoder& decoder, const Limits& limits,
                             int own_versions = 0);

  // decoder and pool must outlive the engine. All memory is taken here; compare MemoryNeeded with
  // what is free before, for the system grants more than it has, and ends the process later.
  // ResourceExhausted: not even that. InvalidArgument: a limit below 1, or a cache of less than one
  // page.
  static StatusOr<std::unique_ptr<Engine>> Create(const model::Decoder& decoder,
                                                  kernels::Pool& pool, const Limits& limits);

  ~Engine();

  // Holds a version. `slot`, of the decoder's table, must stay mapped until RemoveVersion;
  // `still_granted` is asked after each forward under it, before any token leaves: false discards
  // that step and fails the version's requests. AlreadyExists: the key is held.
  Status AddVersion(const VersionKey& key, const void* slot, std::function<bool()> still_granted);
  // FailedPrecondition: requests still use it. NotFound: not held.
  Status RemoveVersion(const VersionKey& key);
  bool Holds(const VersionKey& key) const;

  // Queues a group; the id names it in results. InvalidArgument: prompt or lengths that can never
  // be served (names the field and the limit). FailedPrecondition: the version is not held.
  // ResourceExhausted: the queue is full.
  StatusOr<uint64_t> Submit(GroupRequest request);
  // Forgets a request and frees its pages. Unknown ids are ignored (it may just have finished).
  void Cancel(uint64_t request);

  bool HasWork() const { return !groups_.empty(); }
  // Work that waits or runs: for status and metrics.
  int num_queued_groups() const;
  int num_running() const { return static_cast<int>(running_); }
  uint64_t tokens_generated() const { return tokens_generated_; }
  int sequences_running_max() const { return sequences_running_max_; }

  struct StepOutput {
    std::vector<SampleResult> finished;
    // Aborted: the slot of the version was taken back. DataLoss: its logits are not numbers.
    std::vector<std::pair<uint64_t, Status>> failed;
    int rows = 0;  // of the forward; 0: nothing to do
  };
  StepOutput Step();

 private:
  struct Version;
  struct Sample;
  struct Group;
  struct Plan;

  Engine(const model::Decoder& decoder, kernels::Pool& pool, const Limits& limits,
         model::KvCache cache, std::unique_ptr<model::Workspace> workspace, model::Floats logits);

  int PagesFor(int64_t positions) const;
  void AdmitAndStart();
  bool AdmitPrompt(int64_t* waiting_rows);
  bool StartSample(Group& group, Sample& sample);
  Plan PlanStep();
  void Emit(Plan& plan, StepOutput* output);
  // Appends a drawn token; true when the sample is finished.
  bool Append(const Group& group, Sample& sample, const kernels::SampledToken& drawn);
  void Finish(Group& group, Sample& sample, StepOutput* output);
  void NoteBatch(Sample& sample, const Plan& plan) const;
  void DropGroup(std::map<uint64_t, std::unique_ptr<Group>>::iterator it);
  std::vector<Group*> ByUrgency() const;

  const model::Decoder& decoder_;
  kernels::Pool& pool_;
  const Limits limits_;
  model::KvCache cache_;
  std::unique_ptr<model::Workspace> workspace_;
  PagePool pages_;
  const model::Floats logits_;  // [MaxLogitsRows(limits)][vocabulary]

  std::map<VersionKey, Version> versions_;
  std::map<uint64_t, std::unique_ptr<Group>> groups_;  // by request id, so also by arrival
  uint64_t next_request_ = 1;
  int running_ = 0;  // samples that hold pages
  uint64_t tokens_generated_ = 0;
  int sequences_running_max_ = 0;
};

}  // namespace titan::generator

#endif  // TITAN_GENERATOR_ENGINE_H_
