// SPDX-License-Identifier: Apache-2.0
#include "rewards/regex_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <optional>

#include "rewards/parameters.h"
#include "rewards/text.h"

namespace titan::rewards {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kDepthLimit = 10'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct DataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

using Code = std::unique_ptr<pcre2_code, CodeFree>;

struct StepCounter {
  uint64_t left = kMaxRegexSteps;
  size_t position = 0;
};

// Runs before each item of the pattern; a negative result ends the match with that error.
int CountStep(pcre2_callout_block* block, void* user) {
  auto* counter = static_cast<StepCounter*>(user);
  const size_t at = block->current_position;
  const uint64_t cost =
      1 + (at > counter->position ? at - counter->position : counter->position - at);
  counter->position = at;
  if (cost > counter->left) return PCRE2_ERROR_CALLOUT;
  counter->left -= cost;
  return 0;
}

// The library checks the rest of a subject at every search of a pattern that may meet bytes that
// are not UTF-8, so the search for the last match would take the square of the reply's length. Such
// a check is charged like the bytes it passes over.
bool Charge(StepCounter* counter, size_t bytes) {
  if (bytes > counter->left) return false;
  counter->left -= bytes;
  return true;
}

size_t NextCharacter(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool IsNotUtf8(int error) {
  return error <= PCRE2_ERROR_UTF8_ERR1 && error >= PCRE2_ERROR_UTF8_ERR21;
}

std::string PcreError(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return std::to_string(code);
  return reinterpret_cast<const char*>(buffer);
}

class RegexMatch : public Grader {
 public:
  const GraderInfo& info() const override { return info_; }

  Grade Score(const Sample& sample) const override {
    const std::string& reply = sample.completion;
    if (reply.size() > kMaxRegexReplyBytes) {
      return Grade::ModelFault("the reply is longer than the grader reads", incorrect_);
    }
    const std::unique_ptr<pcre2_match_data, DataFree> data(
        pcre2_match_data_create_from_pattern(any_code_.get(), nullptr));
    const std::unique_ptr<pcre2_match_context, ContextFree> context(
        pcre2_match_context_create(nullptr));
    if (data == nullptr || context == nullptr) return Grade::InfraFault("out of memory");
    StepCounter counter;
    pcre2_set_callout(context.get(), CountStep, &counter);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_depth_limit(context.get(), kDepthLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);

    std::optional<std::string_view> found;
    size_t start = 0;
    uint32_t options = 0;
    const auto search = [&](const Code& code, uint32_t more_options) {
      return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(reply.data()), reply.size(),
                         start, options | more_options, data.get(), context.get());
    };
    // The first search of the plain code checks the whole reply, the others need not.
    bool checked = false;
    bool is_utf8 = true;
    while (start <= reply.size()) {
      int count = 0;
      if (is_utf8) {
        count = search(utf8_code_, checked ? PCRE2_NO_UTF_CHECK : 0);
        checked = true;
        is_utf8 = !IsNotUtf8(count);
      }
      if (!is_utf8) {
        if (!Charge(&counter, reply.size() - start)) return Failure(PCRE2_ERROR_CALLOUT);
        count = search(any_code_, 0);
      }
      if (count == PCRE2_ERROR_NOMATCH) {
        if (options == 0 || start >= reply.size()) break;
        // After an empty match nothing else starts here: go one character on.
        options = 0;
        start = NextCharacter(reply, start);
        continue;
      }
      if (count < 0) return Failure(count);
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
      const size_t group = groups_ > 0 && !match_only_ ? 1 : 0;
      if (static_cast<int>(group) < count && ends[2 * group] != PCRE2_UNSET) {
        found =
            std::string_view(reply).substr(ends[2 * group], ends[2 * group + 1] - ends[2 * group]);
      } else {
        found = std::string_view();
      }
      if (!last_) break;
      options = ends[0] == ends[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
      // \K can place a match's start behind its end; the search must move on all the same.
      const bool stays = ends[1] <= start && ends[0] != ends[1];
      start = std::max(stays ? NextCharacter(reply, start) : start, ends[1]);
    }
    if (!found.has_value()) return Grade::ModelFault("the pattern is not in the reply", incorrect_);
    bool right = true;
    if (!match_only_) {
      right = trim_ ? TrimAscii(*found) == TrimAscii(sample.answer) : *found == sample.answer;
    }
    const double value = right ? correct_ : incorrect_;
    return Grade::Ok(value, {{info_.name, value}});
  }

  static StatusOr<std::unique_ptr<Grader>> Make(const Json& json) {
    auto grader = std::make_unique<RegexMatch>();
    const std::string& name = grader->info_.name;
    Parameters parameters(name, json);
    const std::string pattern = parameters.Text("pattern", "");
    grader->match_only_ = parameters.Option("compare", {"capture", "none"}) == "none";
    grader->last_ = parameters.Option("select", {"first", "last"}) == "last";
    grader->trim_ = parameters.Flag("trim", true);
    uint32_t options =
        PCRE2_UTF | PCRE2_AUTO_CALLOUT | PCRE2_NO_AUTO_POSSESS | PCRE2_NEVER_BACKSLASH_C;
    if (parameters.Flag("ignore_case", false)) options |= PCRE2_CASELESS;
    if (parameters.Flag("multi_line", false)) options |= PCRE2_MULTILINE;
    if (parameters.Flag("dot_all", false)) options |= PCRE2_DOTALL;
    grader->correct_ = parameters.Number("correct", 1);
    grader->incorrect_ = parameters.Number("incorrect", 0);
    TITAN_RETURN_IF_ERROR(parameters.Finish());
    if (pattern.empty()) return InvalidArgument(name + ".pattern: is required");
    if (pattern.size() > kMaxPatternBytes) {
      return InvalidArgument(name + ".pattern: longer than " + std::to_string(kMaxPatternBytes) +
                             " bytes");
    }
    if (pattern.find("(*") != std::string::npos || pattern.find("(?C") != std::string::npos) {
      return InvalidArgument(name +
                             ".pattern: (*VERB) and (?C) are not allowed; use the parameters");
    }
    for (const bool any : {false, true}) {
      int error = 0;
      PCRE2_SIZE at = 0;
      Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              options | (any ? PCRE2_MATCH_INVALID_UTF : 0), &error, &at, nullptr));
      if (code == nullptr) {
        return InvalidArgument(name + ".pattern: at byte " + std::to_string(at) + ": " +
                               PcreError(error));
      }
      (any ? grader->any_code_ : grader->utf8_code_) = std::move(code);
    }
    pcre2_pattern_info(grader->any_code_.get(), PCRE2_INFO_CAPTURECOUNT, &grader->groups_);
    return std::unique_ptr<Grader>(std::move(grader));
  }

 private:
  Grade Failure(int code) const {
    switch (code) {
      case PCRE2_ERROR_CALLOUT:
      case PCRE2_ERROR_MATCHLIMIT:
      case PCRE2_ERROR_DEPTHLIMIT:
      case PCRE2_ERROR_HEAPLIMIT:
        return Grade::ModelFault("the reply takes the pattern more steps than the limit",
                                 incorrect_);
      default:
        return Grade::InfraFault("regular expression: " + PcreError(code));
    }
  }

  const GraderInfo info_ = RegexMatchInfo();
  Code utf8_code_;  // for replies that are UTF-8
  Code any_code_;   // for the others; the same pattern, no match touches a bad byte
  uint32_t groups_ = 0;
  bool match_only_ = false;
  bool last_ = false;
  bool trim_ = true;
  double correct_ = 1;
  double incorrect_ = 0;
};

}  // namespace

GraderInfo RegexMatchInfo() {
  GraderInfo info;
  info.name = "regex_match";
  info.version = 2;
  info.summary = "a regular expression is found in the reply and captures the answer";
  info.parameters = {{"pattern", "Perl-compatible regular expression, required"},
                     {"compare",
                      "capture (default): the first group, or the whole match of a pattern without "
                      "groups, equals the answer; none: being found is enough"},
                     {"select", "which match of the reply: first (default) or last"},
                     {"trim", "ignore white space at the ends of what is compared, default true"},
                     {"ignore_case", "letters match in either case, default false"},
                     {"multi_line", "^ and $ match at line ends, default false"},
                     {"dot_all", "the dot matches line ends, default false"},
                     {"correct", "value of a right reply, default 1"},
                     {"incorrect", "value of a wrong reply and of one without a match, default 0"}};
  return info;
}

StatusOr<std::unique_ptr<Grader>> MakeRegexMatch(const Json& parameters) {
  return RegexMatch::Make(parameters);
}

}  // namespace titan::rewards
