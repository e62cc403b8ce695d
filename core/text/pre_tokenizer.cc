// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8

#include "core/text/pre_tokenizer.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <utility>

#include "core/text/utf8.h"

namespace titan::text {
namespace {

// Property White_Space, which is what \s means in Oniguruma; PCRE2's \s has U+180E too.
constexpr std::string_view kWhiteSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

bool IsAsciiAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Walks through a pattern once and writes the translation.
class RegexTranslator {
 public:
  RegexTranslator(std::string_view pattern, std::string_view where)
      : pattern_(pattern), where_(where) {}

  StatusOr<std::string> Run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        TITAN_RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        TITAN_RETURN_IF_ERROR(InClass(c));
      } else {
        TITAN_RETURN_IF_ERROR(Outside(c));
      }
    }
    return std::move(out_);
  }

 private:
  char Peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void Copy(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }
  Status Refuse(std::string_view what) const {
    return Unimplemented(
        fmt::format("{}: regular expression: {} at offset {} is not covered", where_, what, at_));
  }

  Status Escape() {
    const char c = Peek(1);
    switch (c) {
      case 's':
        out_.append(in_class_ ? std::string(kWhiteSpaceClass)
                              : fmt::format("[{}]", kWhiteSpaceClass));
        at_ += 2;
        return OkStatus();
      case 'S':
        if (in_class_) return Refuse("\\S inside a class");
        out_.append(fmt::format("[^{}]", kWhiteSpaceClass));
        at_ += 2;
        return OkStatus();
      case 'd':
        out_.append("\\p{Nd}");
        at_ += 2;
        return OkStatus();
      case 'r':
      case 'n':
      case 't':
      case 'f':
        Copy(2);
        return OkStatus();
      case 'p':
      case 'P':
      case 'x': {
        const size_t end = Peek(2) == '{' ? pattern_.find('}', at_) : std::string_view::npos;
        if (end == std::string_view::npos) return Refuse("an escape without {...}");
        Copy(end + 1 - at_);
        return OkStatus();
      }
      case 'u':
        if (at_ + 6 > pattern_.size()) return Refuse("a cut \\u");
        out_.append(fmt::format("\\x{{{}}}", pattern_.substr(at_ + 2, 4)));
        at_ += 6;
        return OkStatus();
      default:
        if (c == '\0' || IsAsciiAlnum(c) || static_cast<uint8_t>(c) >= 0x80) {
          return Refuse(fmt::format("the escape \\{}", c));
        }
        Copy(2);
        return OkStatus();
    }
  }

  Status InClass(char c) {
    if (c == '[') return Refuse("a class inside a class");
    if (c == '&' && Peek(1) == '&') return Refuse("a class intersection");
    if (c == ']') in_class_ = false;
    Copy(1);
    return OkStatus();
  }

  Status Outside(char c) {
    switch (c) {
      case '.':
      case '^':
      case '$':
        return Refuse(fmt::format("'{}'", c));
      case '[': {
        in_class_ = true;
        const size_t length = Peek(1) == '^' ? 2 : 1;
        if (Peek(length) == ']') return Refuse("an empty class");
        Copy(length);
        return OkStatus();
      }
      case '}':
        if (Peek(1) == '+') return Refuse("a possessive {...}+");
        Copy(1);
        return OkStatus();
      case '(':
        if (Peek(1) == '*') return Refuse("a verb (*...)");
        if (Peek(1) == '?') return Group();
        Copy(1);
        return OkStatus();
      default:
        Copy(1);
        return OkStatus();
    }
  }

  Status Group() {
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!pattern_.substr(at_).starts_with(opening)) continue;
      Copy(opening.size());
      return OkStatus();
    }
    return Refuse("this kind of group");
  }

  const std::string_view pattern_;
  const std::string_view where_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

StatusOr<std::string> TranslateRegex(std::string_view pattern, std::string_view where) {
  return RegexTranslator(pattern, where).Run();
}

void PreTokenizer::CodeDeleter::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Status PreTokenizer::Compile(std::string_view pattern, uint32_t options, Gaps gaps,
                             std::string_view where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options | PCRE2_UTF, &error, &offset, nullptr);
  if (code == nullptr) {
    return InvalidArgument(
        fmt::format("{}: regular expression: {} at offset {}", where, ErrorText(error), offset));
  }
  // Where no compiler for this machine is built in, matching interprets: same result, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  Step step{Kind::kRegex, {}, gaps};
  step.code.reset(code);
  steps_.push_back(std::move(step));
  return OkStatus();
}

Status PreTokenizer::AddRegex(std::string_view pattern, Gaps gaps, std::string_view where) {
  if (!IsValidUtf8(pattern)) {
    return InvalidArgument(fmt::format("{}: regular expression: is not UTF-8", where));
  }
  TITAN_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern, where));
  return Compile(translated, PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, gaps, where);
}

Status PreTokenizer::AddLiteral(std::string_view text, Gaps gaps, std::string_view where) {
  if (text.empty() || !IsValidUtf8(text)) {
    return InvalidArgument(fmt::format("{}: text to split at: is empty or not UTF-8", where));
  }
  return Compile(text, PCRE2_LITERAL, gaps, where);
}

void PreTokenizer::AddDigits(bool individual) {
  steps_.push_back(Step{individual ? Kind::kDigits : Kind::kDigitRuns, {}});
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  if (text.empty()) return OkStatus();
  std::vector<std::string_view> current = {text}, next;
  for (const Step& step : steps_) {
    next.clear();
    for (const std::string_view piece : current) {
      if (step.kind == Kind::kRegex) {
        TITAN_RETURN_IF_ERROR(SplitByRegex(step, piece, &next));
      } else {
        SplitByDigits(step, piece, &next);
      }
    }
    current.swap(next);
  }
  pieces->insert(pieces->end(), current.begin(), current.end());
  return OkStatus();
}

Status PreTokenizer::SplitByRegex(const Step& step, std::string_view text,
                                  std::vector<std::string_view>* pieces) {
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create(1, nullptr));
  if (data == nullptr) return ResourceExhausted("regular expression: out of memory");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
  size_t begin = 0;  // of the stretch since the last match
  size_t search = 0;
  while (search < text.size()) {
    int result = pcre2_match(step.code.get(), subject, text.size(), search, PCRE2_NO_UTF_CHECK,
                             data.get(), nullptr);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      result = pcre2_match(step.code.get(), subject, text.size(), search,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), nullptr);
    }
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return Internal(fmt::format("regular expression: {} in a piece of {} bytes",
                                  ErrorText(result), text.size()));
    }
    if (range[0] == range[1]) {  // an empty match cuts nothing
      search = range[1];
      if (search < text.size()) NextCodePoint(text, &search);
      continue;
    }
    if (range[0] > begin && step.gaps == Gaps::kKeep) {
      pieces->push_back(text.substr(begin, range[0] - begin));
    }
    pieces->push_back(text.substr(range[0], range[1] - range[0]));
    begin = search = range[1];
  }
  if (begin < text.size() && step.gaps == Gaps::kKeep) pieces->push_back(text.substr(begin));
  return OkStatus();
}

void PreTokenizer::SplitByDigits(const Step& step, std::string_view text,
                                 std::vector<std::string_view>* pieces) {
  size_t begin = 0;
  bool in_digits = false;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const bool numeric = IsNumeric(NextCodePoint(text, &at));
    const bool cut = numeric != in_digits || (numeric && step.kind == Kind::kDigits);
    if (cut && here > begin) {
      pieces->push_back(text.substr(begin, here - begin));
      begin = here;
    }
    in_digits = numeric;
  }
  if (begin < text.size()) pieces->push_back(text.substr(begin));
}

}  // namespace titan::text
