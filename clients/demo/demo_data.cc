// SPDX-License-Identifier: Apache-2.0
#include "clients/demo/demo_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace titan::demo {

std::string DataText() {
  std::string text;
  for (int a = 0; a <= kLargestOperand; ++a) {
    for (int b = 0; b <= kLargestOperand; ++b) {
      nlohmann::ordered_json row;
      row["id"] = fmt::format("add-{:02}-{:02}", a, b);
      nlohmann::ordered_json message;
      message["role"] = "user";
      message["content"] = fmt::format("What is {} + {}?", a, b);
      row["prompt"] = nlohmann::ordered_json::array({message});
      row["answer"] = std::to_string(a + b);
      text += row.dump() + "\n";
    }
  }
  return text;
}

config::v1::JobSpec MakeJob(const DemoJob& demo) {
  config::v1::JobSpec job;
  job.set_name("additions");
  job.set_kind("rl");
  job.set_seed(demo.seed);
  job.mutable_model()->set_path(demo.model_path);
  job.mutable_model()->set_mode("f32");
  job.mutable_data()->set_path(demo.data_path);
  job.mutable_data()->set_held_out(kHeldOut);
  auto* schedule = job.mutable_schedule();
  schedule->set_kind("logical");
  schedule->set_max_age(1);
  schedule->set_steps(demo.steps);
  schedule->set_groups_per_step(8);
  schedule->set_on_untrainable("drop");
  auto* rollout = job.mutable_rollout();
  rollout->set_samples_per_group(8);
  rollout->set_temperature(1);
  rollout->set_max_new_tokens(20);
  job.mutable_reward()->set_grader("numeric_match");
  auto* training = job.mutable_training();
  training->set_advantage("group_zscore_population");
  training->set_advantage_epsilon(1e-6);
  training->set_clip_low(0.2);
  training->set_clip_high(0.2);
  training->set_aggregation("token_mean");
  training->set_learning_rate(1e-5);
  training->set_beta1(0.9);
  training->set_beta2(0.999);
  training->set_epsilon(1e-8);
  training->set_weight_decay(0);
  training->set_max_gradient_norm(1);
  job.mutable_evaluation()->set_every_steps(10);
  job.mutable_evaluation()->set_max_new_tokens(20);
  job.mutable_parity()->set_share(0.5);
  job.mutable_parity()->set_on_difference("stop");
  return job;
}

}  // namespace titan::demo
