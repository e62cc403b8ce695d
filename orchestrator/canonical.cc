// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/canonical.h"

#include <algorithm>
#include <cstdio>

#include "core/base/hash.h"

namespace titan::orchestrator {
namespace {

class Line {
 public:
  explicit Line(const char* kind) : text_(kind) {}

  Line& Id(const char* name, uint64_t id) { return Raw(name, ToHex(id)); }
  // Ten digits: lines of later steps sort later.
  Line& Count(const char* name, uint64_t value) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%010llu", static_cast<unsigned long long>(value));
    return Raw(name, digits);
  }
  Line& Real(const char* name, double value) {
    char digits[64];
    std::snprintf(digits, sizeof(digits), "%a", value);
    return Raw(name, digits);
  }
  Line& Text(const char* name, const std::string& value) {
    std::string escaped;
    for (const char c : value) {
      if (c == '\n') {
        escaped += "\\n";
      } else if (c == '\\') {
        escaped += "\\\\";
      } else {
        escaped += c;
      }
    }
    return Raw(name, '"' + escaped + '"');
  }
  std::string Take() { return std::move(text_); }

 private:
  Line& Raw(const char* name, const std::string& value) {
    text_ += std::string(" ") + name + "=" + value;
    return *this;
  }
  std::string text_;
};

std::string Of(const JobSubmitted& f) {
  return Line("job_submitted").Id("spec", Hash64(f.spec_bytes)).Take();
}
std::string Of(const StateChanged& f) {
  return Line("state_changed").Text("state", NameOf(f.state)).Text("reason", f.reason).Take();
}
std::string Of(const GroupAdmitted& f) {
  return Line("group_admitted")
      .Id("group", f.group.value)
      .Count("row", f.data_row)
      .Count("version", f.version)
      .Take();
}
std::string Of(const RolloutStarted& f) {
  return Line("rollout_started").Id("group", f.group.value).Take();
}
std::string Of(const SampleGenerated& f) {
  const auto& tokens = f.reply->token_ids;
  const auto& logprobs = f.reply->logprobs;
  return Line("sample_generated")
      .Id("group", f.group.value)
      .Count("index", f.sample_index)
      .Id("sample", f.sample.value)
      .Count("version", f.version)
      .Count("finish", static_cast<uint32_t>(f.finish))
      .Count("tokens", tokens.size())
      .Id("token_hash", Hash64(tokens.data(), tokens.size() * sizeof(tokens[0])))
      .Id("logprob_hash", Hash64(logprobs.data(), logprobs.size() * sizeof(logprobs[0])))
      .Take();
}
std::string Of(const SampleScored& f) {
  Line line("sample_scored");
  line.Id("sample", f.sample.value).Real("value", f.value).Text("grader", f.grader);
  line.Text("grader_version", f.grader_version).Text("model_fault", f.model_fault);
  for (const auto& [name, value] : f.components) line.Text("component", name).Real("is", value);
  return line.Take();
}
std::string Of(const GroupClosed& f) {
  return Line("group_closed")
      .Id("group", f.group.value)
      .Count("trainable", f.trainable)
      .Text("reason", f.reason)
      .Take();
}
std::string Of(const StepPlanned& f) {
  Line line("step_planned");
  line.Count("step", f.step).Text("plan", f.plan_digest);
  for (const SampleId sample : f.samples) line.Id("sample", sample.value);
  return line.Take();
}
std::string Of(const StepDone& f) {
  const StepReport r = CanonicalOf(f.report);
  return Line("step_done")
      .Count("step", r.step)
      .Text("weights", r.weights_digest)
      .Real("reward_mean", r.reward_mean)
      .Count("groups_trained", r.groups_trained)
      .Count("groups_untrainable", r.groups_untrainable)
      .Count("samples", r.samples)
      .Count("tokens_generated", r.tokens_generated)
      .Count("tokens_trained", r.tokens_trained)
      .Real("loss", r.loss)
      .Real("gradient_norm", r.gradient_norm)
      .Real("clip_fraction", r.clip_fraction)
      .Real("ratio_max", r.ratio_max)
      .Real("learning_rate", r.learning_rate)
      .Real("logprob_difference_max", r.parity.logprob_difference_max)
      .Count("tokens_differing", r.parity.tokens_differing)
      .Count("tokens_compared", r.parity.tokens_compared)
      .Count("age", r.age)
      .Take();
}
std::string Of(const EvaluationDone& f) {
  const EvaluationReport r = CanonicalOf(f.report);
  return Line("evaluation_done")
      .Count("version", r.version)
      .Count("questions", r.questions)
      .Count("correct", r.correct)
      .Real("completion_tokens_mean", r.completion_tokens_mean)
      .Text("skipped", r.skipped_reason)
      .Take();
}
std::string Of(const CommandGiven& f) {
  return Line("command").Text("kind", f.kind).Text("reason", f.reason).Take();
}
std::string Of(const MessageTold& f) { return Line("message").Text("text", f.text).Take(); }

}  // namespace

std::string CanonicalLine(const Fact& fact) {
  return std::visit([](const auto& body) { return Of(body); }, fact.body);
}

std::vector<std::string> CanonicalForm(const std::vector<Fact>& facts) {
  std::vector<std::string> lines;
  lines.reserve(facts.size());
  for (const Fact& fact : facts) {
    if (!std::holds_alternative<MessageTold>(fact.body)) lines.push_back(CanonicalLine(fact));
  }
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return lines;
}

}  // namespace titan::orchestrator
