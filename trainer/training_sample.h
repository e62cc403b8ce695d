// SPDX-License-Identifier: Apache-2.0
//
// One sample of a training step, as the orchestrator planned it. A value.
#ifndef TITAN_TRAINER_TRAINING_SAMPLE_H_
#define TITAN_TRAINER_TRAINING_SAMPLE_H_

#include <cstdint>
#include <vector>

#include "core/base/ids.h"

namespace titan::trainer {

struct TrainingSample {
  GroupId group;
  uint32_t group_index = 0;  // slot order among the trained groups, from 0
  uint32_t sample_index = 0;
  SampleId id;
  std::vector<TokenId> prompt;   // at least 1
  std::vector<TokenId> reply;    // at least 1
  std::vector<float> log_probs;  // of the rollout, parallel to reply
  double advantage = 0.0;
  bool trained = false;   // part of the loss
  bool compared = false;  // log-probs compared for parity

  int64_t length() const { return static_cast<int64_t>(prompt.size() + reply.size()); }
};

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_TRAINING_SAMPLE_H_
