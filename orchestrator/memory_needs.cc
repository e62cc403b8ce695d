// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/memory_needs.h"

#include <algorithm>
#include <bit>

namespace titan::orchestrator {
namespace {

std::string Mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Of one step, and what is there once for all steps: what generator/engine.h plans beside the
// cache.
uint64_t ScratchBytes(const formats::ModelConfig& model, const GeneratorMemory& generator) {
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t rows = generator.max_batch_tokens;
  const uint64_t hidden = u(model.hidden_size), head = u(model.head_dim);
  const uint64_t chosen = u(model.experts_per_token);
  const uint64_t mlp =
      std::max(u(model.intermediate_size), chosen * u(model.expert_intermediate_size));
  uint64_t row = 3 * hidden + 2 * (u(model.num_heads) + u(model.num_kv_heads)) * head + 3 * mlp;
  if (model.num_experts > 0) row += u(model.num_experts) + chosen * (2 * hidden + 1);
  const uint64_t logits_rows = std::min(rows, 2 * uint64_t{generator.max_running_sequences});
  const uint64_t rope =
      u(model.max_position_embeddings) * head * (model.local_rope_theta != 0 ? 2 : 1);
  return sizeof(float) * (rows * row + logits_rows * u(model.vocab_size) + rope);
}

MemoryNeed NeedOf(const formats::ModelConfig& model, std::span<const GeneratorMemory> generators) {
  uint64_t caches = 0, scratch = 0, taken = 0;
  for (const GeneratorMemory& generator : generators) {
    caches += generator.kv_cache_bytes;
    scratch += ScratchBytes(model, generator);
    taken += generator.taken_bytes;
  }
  const uint64_t all = caches + scratch;
  return {"generators", all - std::min(all, taken),
          std::to_string(generators.size()) + " with caches of " + Mib(caches) +
              " (kv_cache_bytes) and " + Mib(scratch) +
              " of activations, logits and rotary tables" +
              (taken > 0 ? ", of which " + Mib(taken) + " are taken already" : "")};
}

}  // namespace

uint64_t WeightBytes(const formats::ModelConfig& model) {
  uint64_t parameters = 0;
  for (const formats::TensorSpec& tensor : formats::CanonicalTensors(model)) {
    parameters += static_cast<uint64_t>(tensor.num_elements());
  }
  return parameters * sizeof(float);
}

uint64_t VersionBytes(const formats::ModelConfig& model, const JobSpec& spec) {
  return spec.model.mode != "f32" ? WeightBytes(model) / 2 : WeightBytes(model);
}

std::vector<MemoryNeed> MemoryNeeds(const formats::ModelConfig& model, const JobSpec& spec,
                                    std::span<const GeneratorMemory> generators) {
  const uint64_t weights = WeightBytes(model);
  const uint64_t version = VersionBytes(model, spec);
  // The ring of S + 3 slots, and those for evaluation, which the store takes for every run.
  const uint64_t slots = uint64_t{spec.schedule.max_age} + 3 + spec.evaluation.slots;
  // Master weights, two moments, and a stack of log2(Z) + 1 gradients; for checkpoints a second set
  // of the first three.
  const bool checkpoints = spec.training.checkpoint_every_steps > 0;
  const uint64_t arrays =
      (checkpoints ? 6 : 3) + static_cast<uint64_t>(std::bit_width(spec.training.shards));
  std::vector<MemoryNeed> needs = {
      {"weightstore", slots * version,
       std::to_string(slots) + " slots of " + Mib(version) + " (schedule.max_age + 3, and " +
           std::to_string(spec.evaluation.slots) + " for evaluation)"},
      {"trainer", arrays * weights,
       std::to_string(arrays) + " arrays of " + Mib(weights) + " (weights, two moments, gradients" +
           (checkpoints ? ", a second set of the first three for checkpoints" : "") +
           "), activations not counted"}};
  if (!generators.empty()) needs.push_back(NeedOf(model, generators));
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
