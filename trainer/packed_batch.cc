// SPDX-License-Identifier: Apache-2.0
#include "trainer/packed_batch.h"

namespace titan::trainer {

void PackedBatch::AddSample(const TrainingSample& sample) {
  samples.push_back(&sample);
  const int32_t first_row = AddRun(sample.prompt, sample.reply, -1);
  const auto prompt_size = static_cast<int32_t>(sample.prompt.size());
  for (size_t t = 0; t < sample.reply.size(); ++t) {
    predicted_by.push_back(static_cast<int32_t>(rows.size()));
    Predict(first_row + prompt_size - 1 + static_cast<int32_t>(t), sample.reply[t]);
  }
}

// The replies in order, then the prompt, whose last row predicts the first token of each of them.
void PackedBatch::AddGroup(std::span<const TrainingSample* const> group) {
  const auto parent = static_cast<int32_t>(run_lengths.size() + group.size());
  const size_t first_token = predicted_by.size();
  for (const TrainingSample* sample : group) {
    samples.push_back(sample);
    const int32_t first_row = AddRun(sample->reply, {}, parent);
    predicted_by.push_back(0);  // set below
    for (size_t t = 1; t < sample->reply.size(); ++t) {
      predicted_by.push_back(static_cast<int32_t>(rows.size()));
      Predict(first_row + static_cast<int32_t>(t) - 1, sample->reply[t]);
    }
  }
  const std::vector<TokenId>& prompt = group.front()->prompt;
  const int32_t branch = AddRun(prompt, {}, -1) + static_cast<int32_t>(prompt.size()) - 1;
  size_t token = first_token;
  for (const TrainingSample* sample : group) {
    predicted_by[token] = static_cast<int32_t>(rows.size());
    Predict(branch, sample->reply.front());
    token += sample->reply.size();
  }
}

}  // namespace titan::trainer
