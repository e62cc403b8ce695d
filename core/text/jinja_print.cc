// SPDX-License-Identifier: Apache-2.0
// Values as text and as JSON, in the spelling of Python, and values out of JSON.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text/jinja_unicode.h"
#include "core/text/jinja_value.h"

namespace titan::text::jinja {

std::string IntToString(Int i) {
  if (i == 0) return "0";
  const bool negative = i < 0;
  std::string digits;
  while (i != 0) {
    const int digit = static_cast<int>(i % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    i /= 10;
  }
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string FloatRepr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto result =
      std::to_chars(buffer, buffer + sizeof(buffer), d, std::chars_format::scientific);
  std::string_view text(buffer, result.ptr - buffer);
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c != '.') digits.push_back(c);
  }
  int exponent = 0;
  std::string_view exponent_text = text.substr(e + 1);
  if (exponent_text.front() == '+') exponent_text.remove_prefix(1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string magnitude = std::to_string(exponent < 0 ? -exponent : exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

std::string Hex(char32_t c, int width) {
  std::string out(width, '0');
  for (int i = width - 1; i >= 0; --i, c >>= 4) out[i] = "0123456789abcdef"[c & 15];
  return out;
}

std::string StringRepr(const std::string& s) {
  const bool single = s.find('\'') != std::string::npos;
  const char quote = single && s.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < s.size();) {
    const char32_t c = NextCodePoint(s, &i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else if (c < 0x100) {
      out += "\\x" + Hex(c, 2);
    } else if (c < 0x10000) {
      out += "\\u" + Hex(c, 4);
    } else {
      out += "\\U" + Hex(c, 8);
    }
  }
  return out + quote;
}

std::string ListRepr(const List& list) {
  if (list.type == ListType::kRange) return list.text;
  std::string out = list.type == ListType::kTuple ? "(" : "[";
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    out += Repr(list.items[i]);
    CheckTextSize(out.size());
  }
  if (list.type == ListType::kTuple) return out + (list.items.size() == 1 ? ",)" : ")");
  return list.type == ListType::kView ? list.text + "(" + out + "])" : out + "]";
}

}  // namespace

std::string Repr(const Value& v) {
  Charge(1);
  switch (v.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return v.AsBool() ? "True" : "False";
    case Kind::kInt:
      return IntToString(v.AsInt());
    case Kind::kFloat:
      return FloatRepr(v.AsDouble());
    case Kind::kString:
      return v.IsMarkup() ? "Markup(" + StringRepr(v.Str()) + ")" : StringRepr(v.Str());
    case Kind::kList:
      return ListRepr(v.AsList());
    case Kind::kDict: {
      std::string out = "{";
      for (const auto& [key, value] : v.AsDict().items) {
        if (out.size() > 1) out += ", ";
        out += Repr(key) + ": " + Repr(value);
        CheckTextSize(out.size());
      }
      return out + "}";
    }
    case Kind::kIterator:
      Fail("a lazy sequence has no text; add the filter list or join before it is printed");
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kFunction:
      Fail(std::string("a ") + TypeName(v) + " has no text; print one of its values instead");
  }
  return "";
}

std::string ToText(const Value& v) {
  if (v.IsString()) return v.Str();
  if (v.IsUndefined()) return "";
  return Repr(v);
}

namespace {

void JsonString(const std::string& s, bool ensure_ascii, std::string* out) {
  *out += '"';
  for (size_t i = 0; i < s.size();) {
    const char32_t c = NextCodePoint(s, &i);
    switch (c) {
      case '"':
        *out += "\\\"";
        continue;
      case '\\':
        *out += "\\\\";
        continue;
      case '\n':
        *out += "\\n";
        continue;
      case '\r':
        *out += "\\r";
        continue;
      case '\t':
        *out += "\\t";
        continue;
      case '\b':
        *out += "\\b";
        continue;
      case '\f':
        *out += "\\f";
        continue;
      default:
        break;
    }
    if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
      *out += "\\u" + Hex(c, 4);
    } else if (ensure_ascii && c >= 0x10000) {
      const char32_t rest = c - 0x10000;
      *out += "\\u" + Hex(0xD800 + (rest >> 10), 4) + "\\u" + Hex(0xDC00 + (rest & 0x3FF), 4);
    } else {
      AppendUtf8(c, out);
    }
  }
  *out += '"';
}

std::string JsonFloat(double d) {
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return FloatRepr(d);
}

std::string JsonKey(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return key.Str();
    case Kind::kNone:
      return "null";
    case Kind::kBool:
      return key.AsBool() ? "true" : "false";
    case Kind::kInt:
      return IntToString(key.AsInt());
    case Kind::kFloat:
      return JsonFloat(key.AsDouble());
    default:
      Fail(std::string("keys must be str, int, float, bool or None, not ") + TypeName(key));
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void Write(const Value& v, int level) {
    Charge(1);
    CheckTextSize(out_.size());
    switch (v.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += v.AsBool() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += IntToString(v.AsInt());
        return;
      case Kind::kFloat:
        out_ += JsonFloat(v.AsDouble());
        return;
      case Kind::kString:
        JsonString(v.Str(), style_.ensure_ascii, &out_);
        return;
      case Kind::kList:
        if (v.AsList().type == ListType::kList || v.AsList().type == ListType::kTuple) {
          WriteList(v.AsList(), level);
          return;
        }
        break;
      case Kind::kDict:
        WriteDict(v.AsDict(), level);
        return;
      default:
        break;
    }
    Fail(std::string("Object of type ") + TypeName(v) + " is not JSON serializable");
  }

  std::string Take() { return std::move(out_); }

 private:
  void NewLine(int level) {
    if (!style_.indented) return;
    out_ += '\n';
    CheckTextSize(out_.size() + style_.indent.size() * static_cast<uint64_t>(level));
    for (int i = 0; i < level; ++i) out_ += style_.indent;
  }

  void WriteList(const List& list, int level) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      Write(list.items[i], level + 1);
    }
    NewLine(level);
    out_ += ']';
  }

  void WriteDict(const Dict& dict, int level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      // Checked before the sort, whose comparison must not fail half way.
      for (const auto* item : items) Compare(items.front()->first, item->first, "<");
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return Compare(a->first, b->first, "<") < 0;
      });
    }
    out_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      JsonString(JsonKey(items[i]->first), style_.ensure_ascii, &out_);
      out_ += style_.key_separator;
      Write(items[i]->second, level + 1);
    }
    NewLine(level);
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
};

Value FromJsonAt(const nlohmann::ordered_json& json, const std::string& path, int depth) {
  if (depth > kMaxValueDepth) {
    FailLimit(path + ": nests deeper than " + std::to_string(kMaxValueDepth));
  }
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
      return Value::None();
    case Type::boolean:
      return Value::Bool(json.get<bool>());
    case Type::number_integer:
      return Value::Integer(json.get<int64_t>());
    case Type::number_unsigned:
      return Value::Integer(json.get<uint64_t>());
    case Type::number_float:
      return Value::Float(json.get<double>());
    case Type::string: {
      const auto& s = json.get_ref<const std::string&>();
      if (!IsValidUtf8(s)) Fail(path + ": the text is not valid UTF-8");
      return Value::String(s);
    }
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) {
        items.push_back(
            FromJsonAt(item, path + "[" + std::to_string(items.size()) + "]", depth + 1));
      }
      return Value::MakeList(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(json.size());
      for (auto it = json.begin(); it != json.end(); ++it) {
        if (!IsValidUtf8(it.key())) Fail(path + ": a key is not valid UTF-8");
        // ordered_json keeps keys unique.
        items.emplace_back(Value::String(it.key()),
                           FromJsonAt(it.value(), path + "." + it.key(), depth + 1));
      }
      return Value::MakeDict(std::move(items));
    }
    case Type::binary:
    case Type::discarded:
      break;
  }
  Fail(path + ": binary values cannot be used in a template");
}

}  // namespace

std::string ToJson(const Value& v, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.Write(v, 0);
  return writer.Take();
}

Value FromJson(const nlohmann::ordered_json& json, const std::string& path) {
  return FromJsonAt(json, path, 1);
}

}  // namespace titan::text::jinja
