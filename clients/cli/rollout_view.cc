// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/rollout_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

std::string Indent(const std::string& raw, const std::string& margin) {
  const std::string text = cluster::Printable(raw);
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += margin + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

std::string Finish(type::v1::FinishReason reason) {
  switch (reason) {
    case type::v1::FINISH_REASON_STOP:
      return "stop";
    case type::v1::FINISH_REASON_LENGTH:
      return "length";
    case type::v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    default:
      return "?";
  }
}

// The version of token i.
uint64_t VersionAt(const RolloutSample& sample, int i) {
  int end = 0;
  for (const auto& span : sample.spans()) {
    end += static_cast<int>(span.num_tokens());
    if (i < end) return span.version();
  }
  return 0;
}

std::string TokenTable(const RolloutSample& sample) {
  std::vector<std::vector<std::string>> rows = {
      {"    ", "ID", "LOG-PROB", "PROB", "VERSION", "TOKEN"}};
  for (int i = 0; i < sample.token_ids_size(); ++i) {
    const double logprob = i < sample.logprobs_size() ? sample.logprobs(i) : NAN;
    rows.push_back(
        {fmt::format("{:>4}", i), std::to_string(sample.token_ids(i)),
         fmt::format("{:.6f}", logprob), fmt::format("{:.4f}", std::exp(logprob)),
         std::to_string(VersionAt(sample, i)),
         i < sample.token_texts_size() ? "'" + Escape(sample.token_texts(i)) + "'" : ""});
  }
  return cluster::FormatTable(rows);
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string doubled;
  for (const char c : text) doubled += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return cluster::PrintableLine(doubled);
}

std::string FormatGroupId(uint64_t id) { return fmt::format("0x{:016x}", id); }

bool ParseGroupId(std::string_view text, uint64_t* id) {
  // As tables print it, or as JSON does. Without the prefix, words such as "abc" would be ids.
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), *id, hex ? 16 : 10);
  return error == std::errc() && end == text.data() + text.size();
}

std::string FormatRollout(const ListRolloutsResponse& group, bool tokens,
                          const cluster::Terminal& terminal) {
  std::string fate = !group.closed() ? "open" : group.trainable() ? "trainable" : group.reason();
  if (group.closed() && !group.trainable()) fate = "not trained: " + Escape(fate);
  std::string text = terminal.Paint(
      cluster::Color::kBold, fmt::format("group {}  step {}  slot {}  candidate {}  version {}  {}",
                                         FormatGroupId(group.group_id()), group.step(),
                                         group.slot(), group.candidate(), group.version(), fate));
  text += "\n";
  if (!group.data_id().empty()) text += fmt::format("row     {}\n", Escape(group.data_id()));
  if (!group.prompt().empty()) text += "prompt\n" + Indent(group.prompt(), "  | ");
  if (!group.answer().empty()) text += fmt::format("answer  {}\n", Escape(group.answer()));
  for (const RolloutSample& sample : group.samples()) {
    double sum = 0;
    for (const float logprob : sample.logprobs()) sum += logprob;
    std::string line = fmt::format(
        "sample {}  {}  {} tokens  {}", sample.sample_index(),
        sample.scored() ? fmt::format("reward {:g}", sample.reward()) : std::string("not scored"),
        sample.num_tokens(), Finish(sample.finish_reason()));
    if (!sample.logprobs().empty()) line += fmt::format("  log-prob {:.6f}", sum);
    line += "  " + cluster::PrintableLine(sample.worker_id());
    if (!sample.model_fault().empty()) line += "  grader: " + Escape(sample.model_fault());
    const cluster::Color color = !sample.scored()      ? cluster::Color::kNone
                                 : sample.reward() > 0 ? cluster::Color::kGreen
                                                       : cluster::Color::kYellow;
    text += terminal.Paint(color, line) + "\n";
    if (sample.reward_components_size() > 0) {
      std::vector<std::string> parts;
      for (const auto& [name, value] : sample.reward_components()) {
        parts.push_back(fmt::format("{} {:g}", cluster::PrintableLine(name), value));
      }
      std::sort(parts.begin(), parts.end());
      text += fmt::format("  components: {}\n", fmt::join(parts, ", "));
    }
    if (!sample.text().empty()) text += Indent(sample.text(), "  > ");
    if (tokens && sample.token_ids_size() > 0) text += TokenTable(sample);
  }
  return text + "\n";
}

}  // namespace titan::cli
