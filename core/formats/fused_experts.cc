// SPDX-License-Identifier: Apache-2.0
#include "core/formats/fused_experts.h"

#include <charconv>
#include <utility>

namespace titan::formats {

std::optional<FusedPlace> FusedPlaceOf(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = name.find(kExperts);
  if (!config.is_gpt_oss() || at == name.npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kExperts.size());
  int64_t expert = -1;
  const auto [stop, bad] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
  if (bad != std::errc() || expert < 0 || expert >= config.num_experts) return std::nullopt;
  const std::string_view part = rest.substr(static_cast<size_t>(stop - rest.data()));
  const int64_t experts = config.num_experts, hidden = config.hidden_size,
                width = config.expert_intermediate_size;
  const std::string prefix(name.substr(0, at + kExperts.size()));
  FusedPlace place;
  if (part == ".gate_proj.weight" || part == ".up_proj.weight") {
    place = {prefix + "gate_up_proj",
             {experts, hidden, 2 * width},
             0,
             2 * hidden * width,
             width,
             hidden,
             0,
             2,
             2 * width};
  } else if (part == ".gate_proj.bias" || part == ".up_proj.bias") {
    place = {prefix + "gate_up_proj_bias", {experts, 2 * width}, 0, 2 * width, width, 1, 0, 2, 0};
  } else if (part == ".down_proj.weight") {
    place = {prefix + "down_proj",
             {experts, width, hidden},
             0,
             hidden * width,
             hidden,
             width,
             0,
             1,
             hidden};
  } else if (part == ".down_proj.bias") {
    place = {prefix + "down_proj_bias", {experts, hidden}, 0, hidden, hidden, 1, 0, 1, 0};
  } else {
    return std::nullopt;
  }
  place.block_begin = expert * place.block_elements;
  if (part.starts_with(".up")) place.first = 1;
  return place;
}

std::vector<TensorSpec> FileTensors(const ModelConfig& config) {
  std::vector<TensorSpec> out;
  for (TensorSpec& tensor : CanonicalTensors(config)) {
    std::optional<FusedPlace> place = FusedPlaceOf(config, tensor.name);
    if (!place.has_value()) {
      out.push_back(std::move(tensor));
    } else if (out.back().name != place->tensor) {
      out.push_back({std::move(place->tensor), std::move(place->shape)});
    }
  }
  return out;
}

}  // namespace titan::formats
