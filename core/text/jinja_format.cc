// SPDX-License-Identifier: Apache-2.0
// The two ways of a template to format text: text % values, and text.format(values).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {
namespace {

constexpr int kMaxWidth = 4096;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool grouped = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

int ReadNumber(std::string_view text, size_t* pos) {
  int value = 0;
  while (*pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9') {
    value = value * 10 + (text[(*pos)++] - '0');
    if (value > kMaxWidth) FailLimit("a width in a format is over " + std::to_string(kMaxWidth));
  }
  return value;
}

std::string PrintDouble(double d, const Spec& spec) {
  char format[16];
  std::snprintf(format, sizeof(format), "%%%s.*%c", spec.alternate ? "#" : "", spec.type);
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const int size = std::snprintf(nullptr, 0, format, precision, std::fabs(d));
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), format, precision, std::fabs(d));
  out.pop_back();
  return out;
}

std::string IntDigits(Int magnitude, int base, bool upper) {
  const char* const digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out += digits[static_cast<int>(magnitude % base)];
    magnitude /= base;
  } while (magnitude != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

void GroupThousands(std::string* digits) {
  size_t end = digits->find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits->size();
  for (size_t at = end; at > 3;) {
    at -= 3;
    digits->insert(at, ",");
  }
}

// Pads to the width; sign and digits are apart so that zeros go between them.
std::string Pad(const Spec& spec, const std::string& sign, const std::string& body,
                char default_align) {
  const auto length = static_cast<int>(CountCodePoints(sign) + CountCodePoints(body));
  const int missing = std::max(0, spec.width - length);
  const char align = spec.align != 0 ? spec.align : default_align;
  const int before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  const auto fill = [&](int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  if (align == '=') return sign + fill(missing) + body;
  return fill(before) + sign + body + fill(missing - before);
}

std::string SignOf(bool negative, char sign) {
  return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

std::string FormatNumber(const Value& v, const Spec& spec) {
  const bool is_float = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (is_float) {
    const double d = v.AsDouble();
    Spec inner = spec;
    double shown = d;
    if (spec.type == '%') {
      inner.type = 'f';
      shown = d * 100;
    }
    std::string body = PrintDouble(shown, inner);
    if (spec.grouped) GroupThousands(&body);
    if (spec.type == '%') body += '%';
    return Pad(spec, SignOf(std::signbit(d) && !std::isnan(d), spec.sign), body, '>');
  }
  const Int i = v.AsInt();
  const bool negative = i < 0;
  const Int magnitude = negative ? -i : i;
  if (magnitude < 0) Fail("an integer does not fit into 128 bits");
  std::string body;
  switch (spec.type) {
    case 'x':
    case 'X':
      body = (spec.alternate ? (spec.type == 'x' ? "0x" : "0X") : "") +
             IntDigits(magnitude, 16, spec.type == 'X');
      break;
    case 'o':
      body = (spec.alternate ? "0o" : "") + IntDigits(magnitude, 8, false);
      break;
    case 'b':
      body = (spec.alternate ? "0b" : "") + IntDigits(magnitude, 2, false);
      break;
    default:
      body = IntDigits(magnitude, 10, false);
      if (spec.grouped) GroupThousands(&body);
  }
  return Pad(spec, SignOf(negative, spec.sign), body, '>');
}

std::string CutText(const std::string& text, int precision) {
  if (precision < 0) return text;
  size_t at = 0;
  for (int i = 0; i < precision && at < text.size(); ++i) NextCodePoint(text, &at);
  return text.substr(0, at);
}

Int ToInteger(const Value& v, char type) {
  if (v.IsIntegral()) return v.AsInt();
  const bool truncates = type == 'd' || type == 'i' || type == 'u';
  if (truncates && v.Is(Kind::kFloat) && std::fabs(v.AsDouble()) < 1e37)
    return static_cast<Int>(v.AsDouble());
  Fail(std::string("%") + type + " format: a number is required, not " + TypeName(v));
}

// One conversion of %; `text[*pos]` is behind the percent sign (and the key in parentheses).
std::string Conversion(std::string_view text, size_t* pos, const std::function<Value()>& next) {
  Spec spec;
  spec.align = '>';
  bool left = false;
  bool zero = false;
  for (; *pos < text.size(); ++*pos) {
    const char c = text[*pos];
    if (c == '-') {
      left = true;
    } else if (c == '0') {
      zero = true;
    } else if (c == '+') {
      spec.sign = '+';
    } else if (c == ' ') {
      if (spec.sign != '+') spec.sign = ' ';
    } else if (c == '#') {
      spec.alternate = true;
    } else {
      break;
    }
  }
  const auto number = [&]() -> int {
    if (*pos < text.size() && text[*pos] == '*') {
      ++*pos;
      const Int i = RequireInt(next(), "* of a format");
      if (i > kMaxWidth || i < -kMaxWidth) {
        FailLimit("a width in a format is over " + std::to_string(kMaxWidth));
      }
      return static_cast<int>(i);
    }
    return ReadNumber(text, pos);
  };
  spec.width = number();
  if (spec.width < 0) {
    left = true;
    spec.width = -spec.width;
  }
  if (*pos < text.size() && text[*pos] == '.') {
    ++*pos;
    spec.precision = std::max(0, number());
  }
  if (*pos >= text.size()) Fail("incomplete format");
  char type = text[(*pos)++];
  if (left) {
    spec.align = '<';
  } else if (zero) {
    spec.align = '=';
    spec.fill = "0";
  }
  const Value v = next();
  switch (type) {
    case 's':
    case 'r':
    case 'a':
      if (v.IsUndefined() && type != 's') Fail(v.UndefinedMessage());
      if (spec.align == '=') {
        spec.align = '>';
        spec.fill = " ";
      }
      return Pad(spec, "", CutText(type == 's' ? ToText(v) : Repr(v), spec.precision), '>');
    case 'c':
      if (v.IsString() && CountCodePoints(v.Str()) == 1) return Pad(spec, "", v.Str(), '>');
      if (v.IsIntegral() && v.AsInt() >= 0 && v.AsInt() <= 0x10FFFF &&
          (v.AsInt() < 0xD800 || v.AsInt() > 0xDFFF)) {
        std::string one;
        AppendUtf8(static_cast<char32_t>(v.AsInt()), &one);
        return Pad(spec, "", one, '>');
      }
      Fail("%c requires a code point or a string of one character");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      if (v.IsUndefined()) Fail(v.UndefinedMessage());
      spec.type = type == 'i' || type == 'u' ? 'd' : type;
      Spec plain;
      plain.alternate = spec.alternate;
      plain.type = spec.type;
      std::string body = FormatNumber(Value::Integer(ToInteger(v, type)), plain);
      const bool negative = body[0] == '-';
      if (negative) body.erase(0, 1);
      if (static_cast<int>(body.size()) < spec.precision) {
        body.insert(0, std::string(static_cast<size_t>(spec.precision) - body.size(), '0'));
      }
      return Pad(spec, SignOf(negative, spec.sign), body, '>');
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (v.IsUndefined()) Fail(v.UndefinedMessage());
      if (!v.IsNumber()) Fail(std::string("must be real number, not ") + TypeName(v));
      spec.type = type;
      return FormatNumber(Value::Float(v.AsDouble()), spec);
    default:
      Fail(std::string("unsupported format character '") + type + "'");
  }
}

Spec ParseSpec(const std::string& text) {
  Spec spec;
  size_t pos = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    size_t next = 0;
    NextCodePoint(text, &next);
    if (next < text.size() && is_align(text[next])) {
      spec.fill = text.substr(0, next);
      spec.align = text[next];
      pos = next + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      pos = 1;
    }
  }
  if (pos < text.size() && (text[pos] == '+' || text[pos] == '-' || text[pos] == ' ')) {
    spec.sign = text[pos++];
  }
  if (pos < text.size() && text[pos] == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (pos < text.size() && text[pos] == '0') {
    if (spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    ++pos;
  }
  spec.width = ReadNumber(text, &pos);
  if (pos < text.size() && text[pos] == ',') {
    spec.grouped = true;
    ++pos;
  }
  if (pos < text.size() && text[pos] == '.') {
    ++pos;
    spec.precision = ReadNumber(text, &pos);
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size() || (spec.type != 0 && std::string_view("sdxXobeEfFgG%").find(spec.type) ==
                                                   std::string_view::npos)) {
    Fail("invalid format specifier '" + text + "'");
  }
  return spec;
}

std::string FormatSpec(const Value& v, const std::string& text) {
  if (text.empty()) return ToText(v);
  Spec spec = ParseSpec(text);
  if (v.IsUndefined()) Fail(v.UndefinedMessage());
  if (!v.IsString() && !v.IsNumber()) {
    Fail(std::string("unsupported format specifier '") + text + "' for object of type '" +
         TypeName(v) + "'");
  }
  if (v.IsString() || v.Is(Kind::kBool) || !v.IsNumber()) {
    const bool numeric_bool = v.Is(Kind::kBool) && spec.type != 0 && spec.type != 's';
    if (!numeric_bool) {
      if ((spec.type != 0 && spec.type != 's') || spec.align == '=') {
        Fail("invalid format specifier '" + text + "' for object of type '" + TypeName(v) + "'");
      }
      return Pad(spec, "", CutText(ToText(v), spec.precision), '<');
    }
  }
  if (spec.type == 's') Fail("unknown format code 's' for a number");
  if (spec.type == 0) {
    if (v.Is(Kind::kFloat)) {
      if (spec.precision < 0) {
        std::string body = FloatRepr(std::fabs(v.AsDouble()));
        return Pad(spec, SignOf(std::signbit(v.AsDouble()), spec.sign), body, '>');
      }
      spec.type = 'g';
    } else {
      spec.type = 'd';
    }
  }
  const bool integer_type = std::string_view("dxXob").find(spec.type) != std::string_view::npos;
  if (integer_type && !v.IsIntegral()) {
    Fail(std::string("unknown format code '") + spec.type + "' for object of type 'float'");
  }
  return FormatNumber(v, spec);
}

}  // namespace

Value FormatPercent(const std::string& text, const Value& argument) {
  const bool tuple = argument.Is(Kind::kList) && argument.AsList().type == ListType::kTuple;
  size_t used = 0;
  bool by_key = false;
  const auto next = [&]() -> Value {
    if (!tuple) {
      if (used++ > 0) Fail("not enough arguments for format string");
      return argument;
    }
    if (used >= argument.AsList().items.size()) Fail("not enough arguments for format string");
    return argument.AsList().items[used++];
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '%') {
      out += text[i++];
      continue;
    }
    ++i;
    if (i < text.size() && text[i] == '%') {
      out += '%';
      ++i;
      continue;
    }
    if (i < text.size() && text[i] == '(') {
      const size_t close = text.find(')', i);
      if (close == std::string::npos) Fail("incomplete format key");
      if (!argument.Is(Kind::kDict)) Fail("format requires a mapping");
      const std::string key = text.substr(i + 1, close - i - 1);
      const Value* found = DictFind(argument.AsDict(), key);
      if (found == nullptr) Fail("the format names the missing key '" + key + "'");
      by_key = true;
      i = close + 1;
      const Value value = *found;
      out += Conversion(text, &i, [&] { return value; });
    } else {
      out += Conversion(text, &i, next);
    }
    CheckTextSize(out.size());
  }
  const size_t given = tuple ? argument.AsList().items.size() : 1;
  if (!by_key && used < given && !(argument.Is(Kind::kDict) || argument.Is(Kind::kList))) {
    Fail("not all arguments converted during string formatting");
  }
  if (tuple && used < given) Fail("not all arguments converted during string formatting");
  return Value::String(std::move(out));
}

std::string FormatBraces(const std::string& text, const std::vector<Value>& positional,
                         const std::vector<std::pair<std::string, Value>>& named) {
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      i += 2;
      continue;
    }
    if (c == '}') Fail("single '}' encountered in format string");
    if (c != '{') {
      out += c;
      ++i;
      continue;
    }
    const size_t close = text.find('}', i);
    if (close == std::string::npos) Fail("single '{' encountered in format string");
    std::string field = text.substr(i + 1, close - i - 1);
    i = close + 1;
    if (field.find('{') != std::string::npos) {
      Fail("a field inside a format specifier is not supported");
    }
    std::string spec;
    char conversion = 0;
    if (const size_t colon = field.find(':'); colon != std::string::npos) {
      spec = field.substr(colon + 1);
      field.resize(colon);
    }
    if (const size_t mark = field.find('!'); mark != std::string::npos) {
      if (mark + 2 != field.size()) Fail("a conversion in a format is one of !s and !r");
      conversion = field[mark + 1];
      field.resize(mark);
    }
    size_t name_end = field.find_first_of(".[");
    if (name_end == std::string::npos) name_end = field.size();
    const std::string name = field.substr(0, name_end);
    Value value;
    if (name.find_first_not_of("0123456789") == std::string::npos) {
      if (name.size() > 6) Fail("a format names an argument that is not there");
      const size_t index = name.empty() ? automatic++ : std::stoul(name);
      if (index >= positional.size()) {
        Fail("Replacement index " + std::to_string(index) +
             " out of range for positional args tuple");
      }
      value = positional[index];
    } else {
      const auto it = std::find_if(named.begin(), named.end(),
                                   [&](const auto& item) { return item.first == name; });
      if (it == named.end()) Fail("the format names the missing argument '" + name + "'");
      value = it->second;
    }
    for (size_t at = name_end; at < field.size();) {
      if (field[at] == '.') {
        size_t end = field.find_first_of(".[", at + 1);
        if (end == std::string::npos) end = field.size();
        value = GetAttribute(value, field.substr(at + 1, end - at - 1));
        at = end;
      } else {
        const size_t end = field.find(']', at);
        if (field[at] != '[' || end == std::string::npos) Fail("expected ']' in a format");
        const std::string key = field.substr(at + 1, end - at - 1);
        const bool digits = !key.empty() && key.size() < 10 &&
                            key.find_first_not_of("0123456789") == std::string::npos;
        value = GetItem(value, digits ? Value::Integer(std::stol(key)) : Value::String(key));
        at = end + 1;
      }
    }
    if (conversion == 'r') {
      value = Value::String(Repr(value));
    } else if (conversion == 's') {
      value = Value::String(ToText(value));
    } else if (conversion != 0) {
      Fail("a conversion in a format is one of !s and !r");
    }
    out += FormatSpec(value, spec);
    CheckTextSize(out.size());
  }
  return out;
}

}  // namespace titan::text::jinja
