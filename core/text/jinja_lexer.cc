// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {

void FailAt(int line, std::string message) {
  Fail("line " + std::to_string(line) + ": " + std::move(message));
}

namespace {

// Line ends become \n, and one line end at the end of the template goes.
std::string Normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char32_t c) { return c == '_' || IsAlpha(c); }
bool IsNamePart(char32_t c) { return c == '_' || IsAlnum(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(Normalize(source)) {}

  std::vector<Token> Run() {
    while (pos_ < source_.size()) Root();
    Emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Emit(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  void Advance(size_t count) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                    source_.begin() + static_cast<ptrdiff_t>(pos_ + count), '\n'));
    pos_ += count;
  }

  bool StartsWith(std::string_view what, size_t at) const {
    return source_.compare(at, what.size(), what) == 0;
  }

  size_t SkipSpace(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!IsSpace(NextCodePoint(source_, &next))) break;
      at = next;
    }
    return at;
  }

  // The text before a tag, after the tag's mark and lstrip_blocks had their say.
  std::string_view TrimBefore(std::string_view text, char mark, bool block) const {
    if (mark == '-') return Strip(text, nullptr, false, true);
    if (mark == '+' || !block) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !at_line_start_) return text;
    const std::string_view tail = text.substr(line_start);
    return Strip(tail, nullptr, true, true).empty() ? text.substr(0, line_start) : text;
  }

  void EmitText(std::string_view text) {
    if (!text.empty()) Emit(TokenKind::kText, std::string(text));
  }

  // Text up to the next tag, then the tag.
  void Root() {
    size_t at = pos_;
    while (true) {
      at = source_.find('{', at);
      if (at == std::string::npos) {
        EmitText(std::string_view(source_).substr(pos_));
        Advance(source_.size() - pos_);
        return;
      }
      if (at + 1 < source_.size() &&
          (source_[at + 1] == '%' || source_[at + 1] == '{' || source_[at + 1] == '#')) {
        break;
      }
      ++at;
    }
    const char opener = source_[at + 1];
    size_t after = at + 2;
    char mark = 0;
    if (after < source_.size() && (source_[after] == '-' || source_[after] == '+')) {
      mark = source_[after++];
    }
    EmitText(TrimBefore(std::string_view(source_).substr(pos_, at - pos_), mark, opener != '{'));
    Advance(after - pos_);
    if (opener == '#') {
      Comment();
    } else if (opener == '{') {
      Emit(TokenKind::kVariableBegin, "");
      Expression(TokenKind::kVariableEnd, "}}");
    } else if (!Raw()) {
      Emit(TokenKind::kBlockBegin, "");
      Expression(TokenKind::kBlockEnd, "%}");
    }
  }

  // Behind a tag's end: marks and trim_blocks. `at` is behind the closing characters.
  void FinishTag(size_t at, char mark, bool block) {
    if (mark == '-') {
      at = SkipSpace(at);
    } else if (mark != '+' && block && at < source_.size() && source_[at] == '\n') {
      ++at;
    }
    Advance(at - pos_);
    at_line_start_ = pos_ > 0 && source_[pos_ - 1] == '\n';
  }

  void Comment() {
    const size_t end = source_.find("#}", pos_);
    if (end == std::string::npos) FailAt(line_, "the comment {# is never closed");
    const char before = end > pos_ ? source_[end - 1] : ' ';
    FinishTag(end + 2, before == '-' || before == '+' ? before : '\0', true);
  }

  // {% raw %} ... {% endraw %}; false when the tag at pos_ is another one.
  bool Raw() {
    const int opened = line_;
    size_t at = SkipSpace(pos_);
    if (!StartsWith("raw", at)) return false;
    at = SkipSpace(at + 3);
    char mark = 0;
    if (at < source_.size() && source_[at] == '-') mark = source_[at++];
    if (!StartsWith("%}", at)) return false;
    at += 2;
    if (mark == '-') at = SkipSpace(at);
    Advance(at - pos_);
    at_line_start_ = source_[pos_ - 1] == '\n';
    for (size_t open = source_.find("{%", pos_); open != std::string::npos;
         open = source_.find("{%", open + 2)) {
      size_t inner = open + 2;
      char open_mark = 0;
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) {
        open_mark = source_[inner++];
      }
      inner = SkipSpace(inner);
      if (!StartsWith("endraw", inner)) continue;
      inner = SkipSpace(inner + 6);
      char close_mark = 0;
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) {
        close_mark = source_[inner++];
      }
      if (!StartsWith("%}", inner)) continue;
      EmitText(TrimBefore(std::string_view(source_).substr(pos_, open - pos_), open_mark, true));
      FinishTag(inner + 2, close_mark, true);
      return true;
    }
    FailAt(opened, "the tag raw is never closed by endraw");
  }

  void Expression(TokenKind end_kind, std::string_view end_text) {
    const int opened = line_;
    std::string open_brackets;
    while (true) {
      Advance(SkipSpace(pos_) - pos_);
      if (pos_ >= source_.size()) {
        FailAt(opened, std::string("the tag ") + (end_text == "}}" ? "{{" : "{%") +
                           " is never closed by " + std::string(end_text));
      }
      if (open_brackets.empty()) {
        const char c = source_[pos_];
        const bool block = end_kind == TokenKind::kBlockEnd;
        const bool marked = c == '-' || (c == '+' && block);
        if (StartsWith(end_text, pos_ + (marked ? 1 : 0))) {
          Emit(end_kind, "");
          FinishTag(pos_ + (marked ? 3 : 2), marked ? c : '\0', block);
          return;
        }
      }
      ExpressionToken(&open_brackets);
    }
  }

  void ExpressionToken(std::string* open_brackets) {
    const char c = source_[pos_];
    if (IsDigit(c)) {
      Number();
    } else if (c == '"' || c == '\'') {
      String(c);
    } else if (size_t next = pos_; IsNameStart(NextCodePoint(source_, &next))) {
      size_t end = next;
      while (end < source_.size()) {
        next = end;
        if (!IsNamePart(NextCodePoint(source_, &next))) break;
        end = next;
      }
      Emit(TokenKind::kName, source_.substr(pos_, end - pos_));
      Advance(end - pos_);
    } else {
      Operator(open_brackets);
    }
  }

  void Operator(std::string* open_brackets) {
    static constexpr std::string_view kOperators[] = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|", ";"};
    for (std::string_view op : kOperators) {
      if (!StartsWith(op, pos_)) continue;
      if (op == "(" || op == "[" || op == "{") {
        *open_brackets += op == "(" ? ')' : op == "[" ? ']' : '}';
        if (open_brackets->size() > 200) FailAt(line_, "more than 200 open brackets");
      } else if (op == ")" || op == "]" || op == "}") {
        if (open_brackets->empty()) FailAt(line_, "unexpected '" + std::string(op) + "'");
        if (open_brackets->back() != op[0]) {
          FailAt(line_, "unexpected '" + std::string(op) + "', expected '" +
                            open_brackets->substr(open_brackets->size() - 1) + "'");
        }
        open_brackets->pop_back();
      }
      Emit(TokenKind::kOperator, std::string(op));
      Advance(op.size());
      return;
    }
    size_t next = pos_;
    NextCodePoint(source_, &next);
    FailAt(line_, "unexpected character '" + source_.substr(pos_, next - pos_) + "'");
  }

  // Digits with single underscores between them; the end.
  size_t Digits(size_t at, int base = 10) const {
    const auto digit = [&](size_t i) {
      if (i >= source_.size()) return false;
      const char c = static_cast<char>(source_[i] | 0x20);
      const int value = IsDigit(source_[i])    ? source_[i] - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : 99;
      return value < base;
    };
    while (digit(at) || (at < source_.size() && source_[at] == '_' && digit(at + 1))) ++at;
    return at;
  }

  void Number() {
    const size_t start = pos_;
    if (source_[start] == '0' && start + 1 < source_.size()) {
      const char kind = static_cast<char>(source_[start + 1] | 0x20);
      const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
      if (base != 0) {
        const size_t end = Digits(start + 2, base);
        if (end > start + 2) return EmitInteger(start + 2, end, base);
      }
    }
    size_t end = Digits(start);
    bool is_float = false;
    // After a dot (rows.0.1) digits are an index, not the start of a fraction.
    if (start > 0 && source_[start - 1] == '.') return EmitInteger(start, end, 10);
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      is_float = true;
      end = Digits(end + 1);
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        is_float = true;
        end = Digits(exponent);
      }
    }
    if (!is_float) return EmitInteger(start, end, 10);
    std::string text = source_.substr(start, end - start);
    std::erase(text, '_');
    double value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
      FailAt(line_, "the number " + text + " is out of range");
    }
    Emit(TokenKind::kFloat, text);
    tokens_.back().value = Value::Float(value);
    Advance(end - start);
  }

  void EmitInteger(size_t start, size_t end, int base) {
    if (base == 10 && source_[start] == '0' && source_.find_first_not_of("0_", start) < end) {
      FailAt(line_, "an integer does not start with 0");
    }
    Int value = 0;
    for (size_t i = start; i < end; ++i) {
      const char c = source_[i];
      if (c == '_') continue;
      const int digit = IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{digit}, &value)) {
        FailAt(line_, "the integer does not fit into 128 bits");
      }
    }
    Emit(TokenKind::kInteger, source_.substr(pos_, end - pos_));
    tokens_.back().value = Value::Integer(value);
    Advance(end - pos_);
  }

  void String(char quote) {
    const size_t start = pos_ + 1;
    size_t end = start;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) FailAt(line_, "the string is never closed");
    Emit(TokenKind::kString, Unescape(std::string_view(source_).substr(start, end - start)));
    Advance(end + 1 - pos_);
  }

  std::string Unescape(std::string_view raw) const {
    std::string out;
    out.reserve(raw.size());
    for (size_t i = 0; i < raw.size();) {
      if (raw[i] != '\\') {
        out += raw[i++];
        continue;
      }
      const char c = raw[i + 1];  // exists: a backslash before the end would have taken the quote
      i += 2;
      switch (c) {
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out += c;
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'v':
          out += '\v';
          break;
        case 'x':
          HexEscape(raw, &i, 2, &out);
          break;
        case 'u':
          HexEscape(raw, &i, 4, &out);
          break;
        case 'U':
          HexEscape(raw, &i, 8, &out);
          break;
        case 'N':
          FailAt(line_, "\\N{...} in a string is not supported; write the character or \\u");
        default:
          if (c >= '0' && c <= '7') {
            char32_t value = c - '0';
            for (int k = 0; k < 2 && i < raw.size() && raw[i] >= '0' && raw[i] <= '7'; ++k) {
              value = value * 8 + (raw[i++] - '0');
            }
            AppendUtf8(value, &out);
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  void HexEscape(std::string_view raw, size_t* i, int digits, std::string* out) const {
    uint32_t value = 0;
    const std::string_view text = raw.substr(*i, digits);
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (result.ec != std::errc() || result.ptr != text.data() + digits || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000)) {
      FailAt(line_, "a string holds an escape that is not a code point");
    }
    AppendUtf8(value, out);
    *i += digits;
  }

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace titan::text::jinja
