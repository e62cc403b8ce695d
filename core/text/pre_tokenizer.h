// SPDX-License-Identifier: Apache-2.0
//
// PreTokenizer: cuts a text into the pieces inside which byte-pair merges happen. A list of steps,
// each of which cuts the pieces of the one before. Immutable after building; Split may be called
// from any thread.
#ifndef TITAN_CORE_TEXT_PRE_TOKENIZER_H_
#define TITAN_CORE_TEXT_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

struct pcre2_real_code_8;

namespace titan::text {

class PreTokenizer {
 public:
  enum class Gaps { kKeep, kDrop };  // what becomes of the text between matches

  // Cuts at the matches of a regular expression: each match is a piece of its own, each stretch
  // between matches too (or is dropped). The expression is written for Oniguruma as tokenizer files
  // have it; what would mean something else here (\w, \b, ., anchors, class intersections, ...) is
  // refused. InvalidArgument / Unimplemented: the expression is malformed / uses what is not
  // covered; `where` stands first in the message.
  Status AddRegex(std::string_view pattern, Gaps gaps, std::string_view where);
  // Cuts at the occurrences of a text.
  Status AddLiteral(std::string_view text, Gaps gaps, std::string_view where);
  // Cuts at numeric characters (category N*): each alone, or runs of them.
  void AddDigits(bool individual);

  // Appends the pieces of text, in order, as views of it; no piece is empty. REQUIRES: valid UTF-8.
  // Internal: the regular expression engine gave up (its limits are far above what a text needs).
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  enum class Kind { kRegex, kDigits, kDigitRuns };
  struct Step {
    Kind kind;
    std::unique_ptr<pcre2_real_code_8, CodeDeleter> code;
    Gaps gaps = Gaps::kKeep;
  };

  Status Compile(std::string_view pattern, uint32_t options, Gaps gaps, std::string_view where);
  static Status SplitByRegex(const Step& step, std::string_view text,
                             std::vector<std::string_view>* pieces);
  static void SplitByDigits(const Step& step, std::string_view text,
                            std::vector<std::string_view>* pieces);

  std::vector<Step> steps_;
};

// The same expression in PCRE2's syntax and with Oniguruma's meaning. Exposed for tests.
StatusOr<std::string> TranslateRegex(std::string_view pattern, std::string_view where);

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_PRE_TOKENIZER_H_
