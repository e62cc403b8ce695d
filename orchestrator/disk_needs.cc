// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/disk_needs.h"

#include <algorithm>

#include "orchestrator/memory_needs.h"

namespace titan::orchestrator {
namespace {

std::string Mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

DiskNeeds DiskNeedsOf(const formats::ModelConfig& model, const JobSpec& spec) {
  DiskNeeds needs;
  needs.version = VersionBytes(model, spec);
  const uint64_t every = spec.training.checkpoint_every_steps;
  if (every == 0) return needs;
  // Those above the version that recovery needs, S back, the newest at or below it, and a new one.
  const uint64_t kept = (spec.schedule.max_age + every - 1) / every + 2;
  needs.num_checkpoints = std::min(kept, spec.schedule.steps / every);
  // Weights and moments; in f32 the version of each is its weights, by content.
  const uint64_t own_version = spec.model.mode != "f32" ? needs.version : 0;
  needs.checkpoints = needs.num_checkpoints * (3 * WeightBytes(model) + own_version);
  return needs;
}

std::string DiskProblem(const DiskNeeds& needs, uint64_t available_bytes) {
  if (needs.version <= available_bytes) return "";
  return "the last version is kept when the job ends and needs " + Mib(needs.version) +
         " of the weight store's disk, " + Mib(available_bytes) + " are available";
}

std::string CheckpointWarning(const DiskNeeds& needs, uint64_t available_bytes) {
  if (needs.version + needs.checkpoints <= available_bytes) return "";
  return "training.checkpoint_every_steps: " + std::to_string(needs.num_checkpoints) +
         " checkpoints need " + Mib(needs.checkpoints) + " of the weight store's disk beside the " +
         Mib(needs.version) + " of the last version, " + Mib(available_bytes) +
         " are available: some will not be written, and training goes on without them";
}

}  // namespace titan::orchestrator
