// SPDX-License-Identifier: Apache-2.0
//
// The training contract of a run (numerics.md section 10): everything that the bits of its weights
// depend on beside the samples. Trainers of one run have equal contracts; where they differ, an
// item says what differs. Any thread; runs the kernels' canned vectors.
#ifndef TITAN_TRAINER_CONTRACT_H_
#define TITAN_TRAINER_CONTRACT_H_

#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/digest.h"
#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "core/model/ranks.h"
#include "trainer/train_run.h"

namespace titan::trainer {

// The forward contract, the backward and optimizer kernels and the rule of units as this process
// computes them, then the run's own: shards (Z), the bound of shared prompts, loss, temperature,
// aggregation, optimizer; numbers exactly. Their digest (kernels::DigestOf) is what a version is
// written under. Limits of memory, threads, packs, recomputation and ranks are no part of it.
// InvalidArgument, Unimplemented: as model::ForwardItems.
StatusOr<std::vector<kernels::ContractItem>> TrainingContract(kernels::Pool& pool,
                                                              const model::Decoder& decoder,
                                                              const TrainConfig& config);

// Holds the items of every rank of a group against each other; every rank calls it.
// FailedPrecondition, the same on all of them, naming the first item that differs, its values and
// whose they are.
Status AgreeOnContract(model::Ranks& ranks, std::span<const kernels::ContractItem> items);

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_CONTRACT_H_
