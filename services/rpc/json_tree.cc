// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/json_tree.h"

#include <cstdint>
#include <set>

namespace titan::rpc {
namespace {

constexpr int kMaxDepth = 64;
constexpr char kNotText[] = "not UTF-8, so this is no JSON text; is it another kind of file?";

// Recursive descent over the text; the first problem is kept and ends the parse.
class Parser {
 public:
  Parser(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  StatusOr<JsonNode> Parse() {
    if (text_.starts_with("\xef\xbb\xbf")) {
      Fail(
          "begins with a byte order mark (EF BB BF), which JSON has not; save the file as UTF-8 "
          "without BOM");
      return Failure();
    }
    if (!CheckUtf8()) return Failure();
    JsonNode root;
    SkipSpace();
    if (at_ >= text_.size()) {
      Fail("the file is empty; it wants one JSON object, { ... }");
      return Failure();
    }
    if (const char c = Peek(); c >= ' ' && c <= '~' && !IsStartOfValue(c)) {
      Fail(std::string("this is not JSON: it begins with '") + c +
           "'; wanted is one JSON object, { \"field\": value, ... }");
      return Failure();
    }
    if (!Value(0, &root)) return Failure();
    SkipSpace();
    if (at_ < text_.size()) {
      Fail("text after the end of the document");
      return Failure();
    }
    return root;
  }

 private:
  Status Failure() const {
    return InvalidArgument(where_ + ":" + std::to_string(problem_position_.line) + ":" +
                           std::to_string(problem_position_.column) + ": " + problem_);
  }

  // Comments have a message of their own.
  static bool IsStartOfValue(char c) {
    return std::string_view("{[\"-0123456789tfn/#").find(c) != std::string_view::npos;
  }

  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    problem_position_ = position_;
    return false;
  }

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void Advance() {
    if (text_[at_] == '\n') {
      ++position_.line;
      position_.column = 1;
    } else {
      ++position_.column;
    }
    ++at_;
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      Advance();
    }
  }

  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    for (size_t i = 0; i < word.size(); ++i) Advance();
    return true;
  }

  bool Value(int depth, JsonNode* out) {
    if (depth > kMaxDepth) return Fail("nested deeper than " + std::to_string(kMaxDepth));
    out->position = position_;
    const char c = Peek();
    if (at_ >= text_.size()) return Fail("the document ends where a value should stand");
    if (c == '{') return Object(depth, out);
    if (c == '[') return Array(depth, out);
    if (c == '"') {
      out->kind = JsonNode::Kind::kString;
      return String(&out->text);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return Number(out);
    if (Word("true")) {
      out->kind = JsonNode::Kind::kBool;
      out->boolean = true;
      return true;
    }
    if (Word("false")) {
      out->kind = JsonNode::Kind::kBool;
      return true;
    }
    if (Word("null")) return true;
    if (c == '/' || c == '#') return Fail("JSON has no comments");
    return Fail("a value should stand here: object, array, string, number, true, false or null");
  }

  bool Object(int depth, JsonNode* out) {
    out->kind = JsonNode::Kind::kObject;
    std::set<std::string> names;
    Advance();
    SkipSpace();
    if (Peek() == '}') {
      Advance();
      return true;
    }
    for (;;) {
      JsonNode::Member member;
      member.position = position_;
      if (Peek() != '"') return Fail("a field name in double quotes should stand here");
      if (!String(&member.name)) return false;
      if (!names.insert(member.name).second) {
        position_ = member.position;
        return Fail("field \"" + member.name + "\" stands twice in one object");
      }
      SkipSpace();
      if (Peek() != ':') return Fail("':' should stand after the field name");
      Advance();
      SkipSpace();
      if (!Value(depth + 1, &member.value)) return false;
      out->members.push_back(std::move(member));
      SkipSpace();
      if (Peek() == '}') {
        Advance();
        return true;
      }
      if (Peek() != ',') return Fail("',' or '}' should stand here");
      Advance();
      SkipSpace();
      if (Peek() == '}') return Fail("a ',' may not stand before '}'");
    }
  }

  bool Array(int depth, JsonNode* out) {
    out->kind = JsonNode::Kind::kArray;
    Advance();
    SkipSpace();
    if (Peek() == ']') {
      Advance();
      return true;
    }
    for (;;) {
      JsonNode item;
      if (!Value(depth + 1, &item)) return false;
      out->items.push_back(std::move(item));
      SkipSpace();
      if (Peek() == ']') {
        Advance();
        return true;
      }
      if (Peek() != ',') return Fail("',' or ']' should stand here");
      Advance();
      SkipSpace();
    }
  }

  bool Digits(std::string* text) {
    if (Peek() < '0' || Peek() > '9') return Fail("a digit should stand here");
    while (Peek() >= '0' && Peek() <= '9') {
      text->push_back(Peek());
      Advance();
    }
    return true;
  }

  bool Number(JsonNode* out) {
    out->kind = JsonNode::Kind::kNumber;
    std::string& text = out->text;
    if (Peek() == '-') {
      text.push_back('-');
      Advance();
    }
    if (Peek() == '0') {
      text.push_back('0');
      Advance();
      if (Peek() >= '0' && Peek() <= '9') return Fail("a number does not start with 0");
    } else if (!Digits(&text)) {
      return false;
    }
    if (Peek() == '.') {
      text.push_back('.');
      Advance();
      if (!Digits(&text)) return false;
    }
    if (Peek() == 'e' || Peek() == 'E') {
      text.push_back('e');
      Advance();
      if (Peek() == '+' || Peek() == '-') {
        text.push_back(Peek());
        Advance();
      }
      if (!Digits(&text)) return false;
    }
    return true;
  }

  bool Hex4(uint32_t* value) {
    *value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = Peek();
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<uint32_t>(c - 'a') + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<uint32_t>(c - 'A') + 10;
      } else {
        return Fail("four hex digits should stand after \\u");
      }
      *value = *value * 16 + digit;
      Advance();
    }
    return true;
  }

  static void AppendUtf8(uint32_t code, std::string* out) {
    const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | code >> 6);
      put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3f));
      put(0x80 | (code & 0x3f));
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
      put(0x80 | (code >> 6 & 0x3f));
      put(0x80 | (code & 0x3f));
    }
  }

  bool Escape(std::string* out) {
    Advance();  // the backslash
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char c = Peek();
    if (const size_t i = kNames.find(c); c != '\0' && i != std::string_view::npos) {
      out->push_back(kValues[i]);
      Advance();
      return true;
    }
    if (c != 'u') return Fail("unknown escape in a string");
    Advance();
    uint32_t code = 0;
    if (!Hex4(&code)) return false;
    if (code >= 0xdc00 && code <= 0xdfff) return Fail("lone surrogate in a string");
    if (code >= 0xd800 && code <= 0xdbff) {
      uint32_t low = 0;
      if (!Word("\\u")) return Fail("lone surrogate in a string");
      if (!Hex4(&low)) return false;
      if (low < 0xdc00 || low > 0xdfff) return Fail("lone surrogate in a string");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    AppendUtf8(code, out);
    return true;
  }

  bool String(std::string* out) {
    Advance();  // the quote
    for (;;) {
      if (at_ >= text_.size()) return Fail("the document ends inside a string");
      const char c = Peek();
      if (c == '"') {
        Advance();
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return Fail("control character in a string");
      if (c == '\\') {
        if (!Escape(out)) return false;
      } else {
        out->push_back(c);
        Advance();
      }
    }
  }

  bool CheckUtf8() {
    for (size_t i = 0; i < text_.size();) {
      const auto lead = static_cast<unsigned char>(text_[i]);
      const size_t length = lead < 0x80       ? 1
                            : lead >> 5 == 6  ? 2
                            : lead >> 4 == 14 ? 3
                            : lead >> 3 == 30 ? 4
                                              : 0;
      bool good = length > 0 && i + length <= text_.size();
      uint32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
      for (size_t k = 1; good && k < length; ++k) {
        const auto next = static_cast<unsigned char>(text_[i + k]);
        good = next >> 6 == 2;
        code = code << 6 | (next & 0x3f);
      }
      static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
      good = good && code >= kSmallest[length] && code <= 0x10ffff &&
             !(code >= 0xd800 && code <= 0xdfff);
      if (!good) return Fail(kNotText);
      for (size_t k = 0; k < length; ++k, ++i) {
        if (text_[i] == '\n') {
          ++position_.line;
          position_.column = 1;
        } else {
          ++position_.column;
        }
      }
    }
    position_ = JsonPosition();
    return true;
  }

  const std::string_view text_;
  const std::string where_;
  size_t at_ = 0;
  JsonPosition position_;
  std::string problem_;
  JsonPosition problem_position_;
};

}  // namespace

std::string_view Describe(JsonNode::Kind kind) {
  switch (kind) {
    case JsonNode::Kind::kNull:
      return "null";
    case JsonNode::Kind::kBool:
      return "a boolean";
    case JsonNode::Kind::kNumber:
      return "a number";
    case JsonNode::Kind::kString:
      return "a string";
    case JsonNode::Kind::kArray:
      return "an array";
    case JsonNode::Kind::kObject:
      return "an object";
  }
  return "a value";
}

StatusOr<JsonNode> ParseJsonTree(std::string_view text, std::string_view where) {
  return Parser(text, where).Parse();
}

}  // namespace titan::rpc
