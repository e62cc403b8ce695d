// SPDX-License-Identifier: Apache-2.0
//
// What a job takes of the weight store's disk, from the sizes of its model: an estimate from below,
// so that a job whose last version cannot be kept is refused before anything is loaded. Pure
// functions, any thread.
#ifndef TITAN_ORCHESTRATOR_DISK_NEEDS_H_
#define TITAN_ORCHESTRATOR_DISK_NEEDS_H_

#include <cstdint>
#include <string>

#include "core/formats/model_config.h"
#include "orchestrator/job_spec.h"

namespace titan::orchestrator {

// Bytes on the weight store's disk.
struct DiskNeeds {
  uint64_t version = 0;          // the last version, kept when the job ends
  uint64_t checkpoints = 0;      // of those that are there at one time; without checkpoints 0
  uint64_t num_checkpoints = 0;  // that many: those that recovery needs, and one being written
};
DiskNeeds DiskNeedsOf(const formats::ModelConfig& model, const JobSpec& spec);
// Why the last version does not fit, with the numbers; empty: it does.
std::string DiskProblem(const DiskNeeds& needs, uint64_t available_bytes);
// What becomes of checkpoints that do not fit beside the last version; empty: they do.
std::string CheckpointWarning(const DiskNeeds& needs, uint64_t available_bytes);

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_DISK_NEEDS_H_
