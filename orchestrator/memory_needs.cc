// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/memory_needs.h"

#include <algorithm>
#include <bit>

namespace titan::orchestrator {
namespace {

std::string Mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

std::vector<MemoryNeed> MemoryNeeds(const formats::ModelConfig& model, const JobSpec& spec) {
  uint64_t parameters = 0;
  for (const formats::TensorSpec& tensor : formats::CanonicalTensors(model)) {
    parameters += static_cast<uint64_t>(tensor.num_elements());
  }
  const uint64_t weights = parameters * sizeof(float);
  // Under w16 and bf16 versions hold the matrices in half the bytes; vectors are few.
  const uint64_t version = spec.model.mode != "f32" ? weights / 2 : weights;
  // The ring of S + 3 slots, and those for evaluation, which the store takes for every run.
  const uint64_t slots = uint64_t{spec.schedule.max_age} + 3 + spec.evaluation.slots;
  // Master weights, two moments, and a stack of log2(Z) + 1 gradients.
  const uint64_t arrays = 3 + static_cast<uint64_t>(std::bit_width(spec.training.shards));
  std::vector<MemoryNeed> needs = {
      {"weightstore", slots * version,
       std::to_string(slots) + " slots of " + Mib(version) + " (schedule.max_age + 3, and " +
           std::to_string(spec.evaluation.slots) + " for evaluation)"},
      {"trainer", arrays * weights,
       std::to_string(arrays) + " arrays of " + Mib(weights) +
           " (weights, two moments, gradients), activations not counted"}};
  std::stable_sort(needs.begin(), needs.end(),
                   [](const MemoryNeed& a, const MemoryNeed& b) { return a.bytes > b.bytes; });
  return needs;
}

std::string MemoryProblem(const std::vector<MemoryNeed>& needs, uint64_t available_bytes) {
  uint64_t total = 0;
  std::string parts;
  for (const MemoryNeed& need : needs) {
    total += need.bytes;
    parts += (parts.empty() ? "" : "; ") + need.holder + " " + Mib(need.bytes) + ": " + need.what;
  }
  if (total <= available_bytes) return "";
  return "the job needs at least " + Mib(total) + " of memory, " + Mib(available_bytes) +
         " are free (" + parts + ")";
}

}  // namespace titan::orchestrator
