// SPDX-License-Identifier: Apache-2.0
#include "trainer/contract.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/hash.h"
#include "core/base/philox.h"
#include "core/model/contract.h"

namespace titan::trainer {
namespace {

using kernels::ContractItem;

constexpr uint64_t kTextBytesMax = uint64_t{1} << 28;

// The shortest decimal that is this number.
std::string Exact(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

std::string Exact(const std::optional<double>& value) {
  return value.has_value() ? Exact(*value) : "none";
}

const char* NameOf(KlKind kind) {
  switch (kind) {
    case KlKind::kNone:
      return "none";
    case KlKind::kK1:
      return "k1";
    case KlKind::kAbs:
      return "abs";
    case KlKind::kK2:
      return "k2";
    case KlKind::kK3:
      return "k3";
  }
  return "";
}

const char* NameOf(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::kTokenMean:
      return "token_mean";
    case Aggregation::kTokenSum:
      return "token_sum";
    case Aggregation::kSequenceMeanTokenMean:
      return "sequence_mean_token_mean";
    case Aggregation::kSequenceMeanTokenSum:
      return "sequence_mean_token_sum";
    case Aggregation::kSequenceMeanTokenSumNorm:
      return "sequence_mean_token_sum_norm";
  }
  return "";
}

// The loss as this process computes it, of canned log-probs on both sides of the clips.
std::string CannedLoss(const TrainConfig& config) {
  PolicyLossConfig loss = config.loss;
  loss.kl = {};
  std::vector<float> now, then;
  for (uint32_t i = 0; i < 64; ++i) {
    const PhiloxCounter words = Philox4x32({i, 0, 0, 0}, {0x10550u, 0x74697461u});
    now.push_back(static_cast<float>(-4.0 * UniformFromWord(words[0])));
    then.push_back(now.back() + static_cast<float>(UniformFromWord(words[1]) - 0.5));
  }
  std::vector<float> derivative(now.size());
  std::string parts;
  for (const double advantage : {1.25, -0.75}) {
    const UpdateCounts counts = {100, 3, 7.0};
    const double weight =
        AggregationWeight(config.aggregation, counts, static_cast<int64_t>(now.size()));
    const SequenceLoss sum = PolicySequenceLoss(loss, now, then, advantage, weight, derivative);
    parts += Exact(sum.loss) + ' ' +
             ToHex(Hash128Of(derivative.data(), derivative.size() * sizeof(float), 0)) + '\n';
  }
  return ToHex(Hash128Of(parts.data(), parts.size(), 0));
}

// Lines "name=value"; neither has a line's end in it.
std::string TextOf(std::span<const ContractItem> items) {
  std::string text;
  for (const ContractItem& item : items) {
    std::string line = item.name + '=' + item.value;
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += line + '\n';
  }
  return text;
}

std::vector<ContractItem> ItemsOf(std::string_view text) {
  std::vector<ContractItem> items;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const size_t equals = line.find('=');
    items.push_back({std::string(line.substr(0, equals)),
                     equals == line.npos ? "" : std::string(line.substr(equals + 1))});
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return items;
}

std::string Shown(const ContractItem* item) {
  return item == nullptr ? "none" : "'" + item->value.substr(0, 80) + "'";
}

Status Differing(std::span<const ContractItem> first, int rank,
                 std::span<const ContractItem> other) {
  for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    const ContractItem* a = i < first.size() ? &first[i] : nullptr;
    const ContractItem* b = i < other.size() ? &other[i] : nullptr;
    if (a != nullptr && b != nullptr && *a == *b) continue;
    if (a != nullptr && b != nullptr && a->name != b->name) b = nullptr;
    return FailedPrecondition("trainer ranks: '" + (a != nullptr ? a->name : b->name) + "' is " +
                              Shown(a) + " on rank 0 and " + Shown(b) + " on rank " +
                              std::to_string(rank) +
                              "; the ranks of a run need one training contract");
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::vector<ContractItem>> TrainingContract(kernels::Pool& pool,
                                                     const model::Decoder& decoder,
                                                     const TrainConfig& config) {
  TITAN_ASSIGN_OR_RETURN(std::vector<ContractItem> items,
                         model::ForwardItems(pool, decoder.config(), decoder.mode()));
  for (ContractItem& item : model::TrainingItems(pool, decoder.mode())) {
    items.push_back(std::move(item));
  }
  const auto add = [&items](const char* name, std::string value) {
    items.push_back({name, std::move(value)});
  };
  add("training.shards", std::to_string(config.num_shards));
  add("training.shared_group_tokens", std::to_string(config.shared_group_tokens));
  add("training.temperature", Exact(config.temperature));
  const PolicyLossConfig& loss = config.loss;
  add("loss.clip_low", Exact(loss.clip_low));
  add("loss.clip_high", Exact(loss.clip_high));
  add("loss.dual_clip", Exact(loss.dual_clip));
  add("loss.log_ratio_clamp", Exact(loss.log_ratio_clamp));
  add("loss.kl", std::string(NameOf(loss.kl.kind)) + ' ' + Exact(loss.kl.coefficient) + ' ' +
                     Exact(loss.kl.in_clamp) + ' ' + Exact(loss.kl.out_clamp) +
                     (loss.kl.straight_through ? " straight_through" : "") +
                     (loss.kl.ratio_weighted ? " ratio_weighted" : ""));
  add("loss.aggregation", NameOf(config.aggregation));
  add("canned.policy_loss", CannedLoss(config));
  add("optimizer.learning_rate", Exact(config.optimizer.lr));
  add("optimizer.beta1", Exact(config.optimizer.beta1));
  add("optimizer.beta2", Exact(config.optimizer.beta2));
  add("optimizer.epsilon", Exact(config.optimizer.eps));
  add("optimizer.weight_decay", Exact(config.optimizer.weight_decay));
  add("optimizer.max_gradient_norm", Exact(config.max_gradient_norm));
  return items;
}

Status AgreeOnContract(model::Ranks& ranks, std::span<const ContractItem> items) {
  const auto size = static_cast<size_t>(ranks.size());
  const auto rank = static_cast<size_t>(ranks.rank());
  std::vector<std::string> texts(size);
  texts[rank] = TextOf(items);
  std::vector<uint64_t> bytes(size);
  bytes[rank] = texts[rank].size();
  std::vector<std::span<std::byte>> parts;
  for (uint64_t& number : bytes) {
    parts.push_back(std::as_writable_bytes(std::span(&number, 1)));
  }
  TITAN_RETURN_IF_ERROR(ranks.AllGather(parts));
  for (size_t r = 0; r < size; ++r) {
    if (bytes[r] > kTextBytesMax) {
      return FailedPrecondition("trainer ranks: the contract of rank " + std::to_string(r) +
                                " has more than 2^28 bytes");
    }
    texts[r].resize(bytes[r]);
    parts[r] = std::as_writable_bytes(std::span(texts[r]));
  }
  TITAN_RETURN_IF_ERROR(ranks.AllGather(parts));
  const std::vector<ContractItem> first = ItemsOf(texts[0]);
  for (size_t r = 1; r < size; ++r) {
    TITAN_RETURN_IF_ERROR(Differing(first, static_cast<int>(r), ItemsOf(texts[r])));
  }
  return OkStatus();
}

}  // namespace titan::trainer
