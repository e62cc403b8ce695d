// SPDX-License-Identifier: Apache-2.0
//
// What a job takes of the memory of a machine that runs its store and trainer and the generators
// that are given, from the sizes of its model: an
// estimate from below, so that a job that cannot fit is refused before anything is loaded. The
// daemons check their own part exactly when they take it. Pure functions, any thread.
#ifndef TITAN_ORCHESTRATOR_MEMORY_NEEDS_H_
#define TITAN_ORCHESTRATOR_MEMORY_NEEDS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/formats/model_config.h"
#include "orchestrator/job_spec.h"

namespace titan::orchestrator {

// Of the weights in f32, and of a version. Under w16 and bf16 versions hold the matrices in half
// the bytes; vectors are few.
uint64_t WeightBytes(const formats::ModelConfig& model);
uint64_t VersionBytes(const formats::ModelConfig& model, const JobSpec& spec);

struct MemoryNeed {
  std::string holder;  // weightstore, trainer, generators
  uint64_t bytes = 0;
  std::string what;  // how it adds up, for people
};

// A generator's settings, and what it has taken already: of an earlier job's model, in whose place
// it takes the next one's.
struct GeneratorMemory {
  uint64_t kv_cache_bytes = 0;
  uint32_t max_batch_tokens = 0;
  uint32_t max_running_sequences = 0;
  uint64_t taken_bytes = 0;
};

// Largest first. Generators map the weights; one that pulls them takes more.
std::vector<MemoryNeed> MemoryNeeds(const formats::ModelConfig& model, const JobSpec& spec,
                                    std::span<const GeneratorMemory> generators);

// Why the needs do not fit into what is left, with the numbers; empty: they do.
std::string MemoryProblem(const std::vector<MemoryNeed>& needs, uint64_t available_bytes);

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_MEMORY_NEEDS_H_
