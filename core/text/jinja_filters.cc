// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {
namespace {

Value Title(const FilterCall& c) {
  c.Bind({}, 0);
  const Value text = c.Text();
  std::string out;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    size_t next = 0;
    NextCodePoint(word, &next);
    out += ToUpper(word.substr(0, next)) + ToLower(word.substr(next));
    word.clear();
  };
  const std::string& s = text.Str();
  for (size_t i = 0; i < s.size();) {
    const size_t at = i;
    const char32_t p = NextCodePoint(s, &i);
    if (p == '-' || p == '(' || p == '{' || p == '[' || p == '<' || IsSpace(p)) {
      flush();
      out.append(s, at, i - at);
    } else {
      word.append(s, at, i - at);
    }
  }
  flush();
  return Value::String(std::move(out));
}

Value Truncate(const FilterCall& c) {
  const Bound b = c.Bind({"length", "killwords", "end", "leeway"}, 0);
  const Int length = b.Has(0) ? RequireInt(b[0], "length") : Int{255};
  const std::string end = b.Has(2) ? RequireString(b[2], "end") : "...";
  const Int leeway = b.Integer(3, "leeway").value_or(5);
  const Int end_length = CountCodePoints(end);
  if (length < end_length) Fail("truncate: length is less than the length of end");
  if (leeway < 0) Fail("truncate: leeway is negative");
  if (!c.input.IsString() && Length(c.input) - leeway <= length) return c.input;
  const Value text = c.Text();
  if (Length(text) - leeway <= length) return text;
  const Value cut =
      GetSlice(text, Value::None(), Value::Integer(length - end_length), Value::None());
  if (b.Flag(1)) return Value::String(cut.Str() + end, text.IsMarkup());
  const size_t space = cut.Str().rfind(' ');
  return Value::String(cut.Str().substr(0, space) + end, text.IsMarkup());
}

Value Indent(const FilterCall& c) {
  const Bound b = c.Bind({"width", "first", "blank"}, 0);
  std::string indent(4, ' ');
  if (b.Has(0) && b[0].IsString()) {
    indent = b[0].Str();
  } else if (b.Has(0)) {
    const Int width = RequireInt(b[0], "width");
    if (width > Int{kMaxTextBytes}) CheckTextSize(kMaxTextBytes + 1);
    indent.assign(static_cast<size_t>(std::max(Int{0}, width)), ' ');
  }
  RequireString(c.input, "what is indented");
  const Value& text = c.input;
  const std::vector<std::string> lines = SplitLines(text.Str() + "\n", false);
  CheckTextSize(text.Str().size() + (lines.size() + 1) * uint64_t{indent.size() + 1});
  std::string out = b.Flag(1) ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out += '\n';
      if (b.Flag(2) || !lines[i].empty()) out += indent;
    }
    out += lines[i];
  }
  return Value::String(std::move(out), text.IsMarkup());
}

// Python's int(text, base) and float(text); false when the text is no number.
bool ParseInteger(std::string_view text, int base, Int* out) {
  text = Strip(text, nullptr, true, true);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char kind = static_cast<char>(text[1] | 0x20);
    const int named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      text.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  if (text.empty() || text.front() == '_' || text.back() == '_') return false;
  Int value = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '_' && text[i - 1] != '_') continue;
    const char lower = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'           ? c - '0'
                      : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                                     : 99;
    if (digit >= base) return false;
    if (__builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      Fail("an integer does not fit into 128 bits");
    }
  }
  *out = negative ? -value : value;
  return true;
}

bool ParseFloat(std::string_view text, double* out) {
  std::string clean(Strip(text, nullptr, true, true));
  std::string_view body = clean;
  const bool negative = body.starts_with('-');
  if (negative || body.starts_with('+')) body.remove_prefix(1);
  if (body.empty() || body.front() == '-') return false;
  if (body.find_first_of("xXpP") != std::string_view::npos ||
      body.find('(') != std::string_view::npos) {
    return false;
  }
  double value = 0;
  const auto result = std::from_chars(body.data(), body.data() + body.size(), value);
  if (result.ptr != body.data() + body.size()) return false;
  if (result.ec == std::errc::result_out_of_range) {
    value = std::strtod(std::string(body).c_str(), nullptr);  // 0 or infinity, as Python reads it
  } else if (result.ec != std::errc()) {
    return false;
  }
  *out = negative ? -value : value;
  return true;
}

Int Truncated(double d) {
  if (!(std::fabs(d) < 1.7e38)) Fail("cannot convert this float to an integer");
  return static_cast<Int>(d);
}

Value ToInt(const FilterCall& c) {
  const Bound b = c.Bind({"default", "base"}, 0);
  const Value otherwise = b.Has(0) ? b[0] : Value::Integer(0);
  const Int base = b.Has(1) ? RequireInt(b[1], "base") : Int{10};
  if (base < 0 || base == 1 || base > 36) Fail("base must be 0 or from 2 to 36");
  const Value& v = c.input;
  if (v.IsUndefined()) Fail(v.UndefinedMessage());
  if (v.IsIntegral()) return Value::Integer(v.AsInt());
  if (v.Is(Kind::kFloat)) {
    if (std::isnan(v.AsDouble())) return otherwise;
    return Value::Integer(Truncated(v.AsDouble()));
  }
  if (!v.IsString()) return otherwise;
  Int i = 0;
  if (ParseInteger(v.Str(), static_cast<int>(base), &i)) return Value::Integer(i);
  double d = 0;
  if (ParseFloat(v.Str(), &d) && std::isfinite(d)) return Value::Integer(Truncated(d));
  return otherwise;
}

Value ToFloat(const FilterCall& c) {
  const Bound b = c.Bind({"default"}, 0);
  const Value& v = c.input;
  if (v.IsUndefined()) Fail(v.UndefinedMessage());
  if (v.IsNumber()) return Value::Float(v.AsDouble());
  double d = 0;
  if (v.IsString() && ParseFloat(v.Str(), &d)) return Value::Float(d);
  return b.Has(0) ? b[0] : Value::Float(0);
}

double RoundDecimal(double d, int precision) {
  if (!std::isfinite(d)) return d;
  if (precision >= 0) {
    char buffer[512];
    std::snprintf(buffer, sizeof(buffer), "%.*f", std::min(precision, 100), d);
    return std::strtod(buffer, nullptr);
  }
  double scale = 1;
  for (int i = 0; i < -precision && i < 308; ++i) scale *= 10;
  return std::nearbyint(d / scale) * scale;
}

Value Round(const FilterCall& c) {
  const Bound b = c.Bind({"precision", "method"}, 0);
  const std::string method = b.Has(1) ? RequireString(b[1], "method") : "common";
  const Int precision = b.Has(0) ? RequireInt(b[0], "precision") : Int{0};
  if (precision > 300 || precision < -300) Fail("round: precision is out of range");
  if (c.input.IsUndefined()) Fail(c.input.UndefinedMessage());
  if (!c.input.IsNumber()) {
    Fail(std::string("type ") + TypeName(c.input) + " doesn't define __round__ method");
  }
  const auto digits = static_cast<int>(precision);
  if (method == "common") {
    if (c.input.IsIntegral() && precision >= 0) return Value::Integer(c.input.AsInt());
    const double rounded = RoundDecimal(c.input.AsDouble(), digits);
    if (c.input.IsIntegral()) return Value::Integer(Truncated(rounded));
    return Value::Float(rounded);
  }
  if (method != "ceil" && method != "floor") Fail("method must be common, ceil or floor");
  double scale = 1;
  for (int i = 0; i < std::abs(digits); ++i) scale *= 10;
  if (digits < 0) scale = 1 / scale;
  const double scaled = c.input.AsDouble() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value ToJsonFilter(const FilterCall& c) {
  const Bound b = c.Bind({"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = b.Flag(0);
  style.sort_keys = b.Flag(3);
  if (b.Has(1) && !b[1].IsNone()) {
    style.indented = true;
    style.item_separator = ",";
    if (b[1].IsString()) {
      style.indent = b[1].Str();
    } else {
      const Int width = RequireInt(b[1], "indent");
      if (width > 1024) FailLimit("tojson: indent is over 1024");
      style.indent.assign(static_cast<size_t>(std::max(Int{0}, width)), ' ');
    }
  }
  if (b.Has(2) && !b[2].IsNone()) {
    const Items parts = Iterate(b[2]);
    if (parts->size() != 2) Fail("tojson: separators needs two texts");
    style.item_separator = RequireString((*parts)[0], "separators");
    style.key_separator = RequireString((*parts)[1], "separators");
  }
  return Value::String(ToJson(c.input, style));
}

Value UrlEncodeText(const Value& v, bool query) {
  std::string out;
  const std::string text = ToText(v);
  CheckTextSize(text.size() * 3);
  for (char ch : text) {
    const auto byte = static_cast<unsigned char>(ch);
    const bool plain = (byte < 0x80 && std::isalnum(byte) != 0) || ch == '-' || ch == '.' ||
                       ch == '_' || ch == '~' || (ch == '/' && !query);
    if (plain) {
      out += ch;
    } else if (ch == ' ' && query) {
      out += '+';
    } else {
      out += '%';
      out += "0123456789ABCDEF"[byte >> 4];
      out += "0123456789ABCDEF"[byte & 15];
    }
  }
  return Value::String(std::move(out));
}

Value UrlEncode(const FilterCall& c) {
  c.Bind({}, 0);
  if (!c.input.Is(Kind::kDict) && !c.input.Is(Kind::kList)) return UrlEncodeText(c.input, false);
  std::vector<Value> pairs;
  if (c.input.Is(Kind::kDict)) {
    for (const auto& [key, value] : c.input.AsDict().items) {
      pairs.push_back(Value::MakeList({key, value}, ListType::kTuple));
    }
  } else {
    pairs = *Iterate(c.input);
  }
  std::string out;
  for (const Value& pair : pairs) {
    const Items parts = Iterate(pair);
    if (parts->size() != 2) Fail("urlencode needs pairs");
    if (!out.empty()) out += '&';
    out += UrlEncodeText((*parts)[0], true).Str() + "=" + UrlEncodeText((*parts)[1], true).Str();
    CheckTextSize(out.size());
  }
  return Value::String(std::move(out));
}

Value WordCount(const FilterCall& c) {
  c.Bind({}, 0);
  const Value text = c.Text();
  Int count = 0;
  bool in_word = false;
  for (size_t i = 0; i < text.Str().size();) {
    const char32_t p = NextCodePoint(text.Str(), &i);
    const bool word = p == '_' || IsAlnum(p);
    count += word && !in_word ? 1 : 0;
    in_word = word;
  }
  return Value::Integer(count);
}

Value Default(const FilterCall& c) {
  const Bound b = c.Bind({"default_value", "boolean"}, 0);
  if (c.input.IsUndefined() || (b.Flag(1) && !Truthy(c.input))) {
    return b.Has(0) ? b[0] : Value::String("");
  }
  return c.input;
}

Value ReplaceFilter(const FilterCall& c) {
  const Bound b = c.Bind({"old", "new", "count"}, 2);
  Args args;
  args.positional = {Value::String(ToText(b[0])), Value::String(ToText(b[1]))};
  if (b.Has(2) && !b[2].IsNone()) args.positional.push_back(b[2]);
  return CallMethod(Value::String(ToText(c.input)), "replace", args);
}

Value Trim(const FilterCall& c) {
  const Bound b = c.Bind({"chars"}, 0);
  Args args;
  if (b.Has(0)) args.positional.push_back(b[0]);
  return c.Method("strip", std::move(args));
}

Value Center(const FilterCall& c) {
  const Bound b = c.Bind({"width"}, 0);
  return c.Method("center", {{b.Has(0) ? b[0] : Value::Integer(80)}, {}});
}

Value FormatFilter(const FilterCall& c) {
  const Value text = c.Text();
  if (c.args.named.empty()) {
    return BinaryOp("%", text, Value::MakeList(c.args.positional, ListType::kTuple));
  }
  if (!c.args.positional.empty()) {
    Fail("format takes positional or named arguments, not both");
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [name, value] : c.args.named) DictSet(&items, Value::String(name), value);
  return BinaryOp("%", text, Value::MakeDict(std::move(items)));
}

Value Abs(const FilterCall& c) {
  c.Bind({}, 0);
  if (c.input.IsUndefined()) Fail(c.input.UndefinedMessage());
  if (!c.input.IsNumber()) {
    Fail(std::string("bad operand type for abs(): '") + TypeName(c.input) + "'");
  }
  if (c.input.Is(Kind::kFloat)) return Value::Float(std::fabs(c.input.AsDouble()));
  return c.input.AsInt() < 0 ? UnaryOp("-", c.input) : UnaryOp("+", c.input);
}

Value Attr(const FilterCall& c) {
  const Bound b = c.Bind({"name"}, 1);
  Value out;
  const std::string& name = RequireString(b[0], "name");
  if (c.input.IsUndefined()) Fail(c.input.UndefinedMessage());
  if (FindAttribute(c.input, name, &out)) return out;
  return Value::Undefined(std::string("'") + TypeName(c.input) + " object' has no attribute '" +
                          name + "'");
}

Value Escape(const FilterCall& c, bool force) {
  c.Bind({}, 0);
  if (c.input.IsMarkup() && !force) return c.input;
  return Value::String(EscapeHtml(ToText(c.input)), true);
}

using Filter = Value (*)(const FilterCall&);

const std::map<std::string_view, Filter>& Filters() {
  static const auto* const kFilters = new std::map<std::string_view, Filter>{
      {"abs", Abs},
      {"attr", Attr},
      {"batch", BatchFilter},
      {"capitalize", [](const FilterCall& c) { return c.Bind({}, 0), c.Method("capitalize"); }},
      {"center", Center},
      {"count", [](const FilterCall& c) { return c.Bind({}, 0), Value::Integer(Length(c.input)); }},
      {"d", Default},
      {"default", Default},
      {"dictsort", DictSortFilter},
      {"e", [](const FilterCall& c) { return Escape(c, false); }},
      {"escape", [](const FilterCall& c) { return Escape(c, false); }},
      {"first", FirstFilter},
      {"float", ToFloat},
      {"forceescape", [](const FilterCall& c) { return Escape(c, true); }},
      {"format", FormatFilter},
      {"groupby", GroupByFilter},
      {"indent", Indent},
      {"int", ToInt},
      {"items", ItemsFilter},
      {"join", JoinFilter},
      {"last", LastFilter},
      {"length",
       [](const FilterCall& c) { return c.Bind({}, 0), Value::Integer(Length(c.input)); }},
      {"list",
       [](const FilterCall& c) { return c.Bind({}, 0), Value::MakeList(*Iterate(c.input)); }},
      {"lower", [](const FilterCall& c) { return c.Bind({}, 0), c.Method("lower"); }},
      {"map", MapFilter},
      {"max", [](const FilterCall& c) { return MinMaxFilter(c, 1); }},
      {"min", [](const FilterCall& c) { return MinMaxFilter(c, -1); }},
      {"reject", [](const FilterCall& c) { return SelectFilter(c, false, false); }},
      {"rejectattr", [](const FilterCall& c) { return SelectFilter(c, false, true); }},
      {"replace", ReplaceFilter},
      {"reverse", ReverseFilter},
      {"round", Round},
      {"safe",
       [](const FilterCall& c) { return c.Bind({}, 0), Value::String(ToText(c.input), true); }},
      {"select", [](const FilterCall& c) { return SelectFilter(c, true, false); }},
      {"selectattr", [](const FilterCall& c) { return SelectFilter(c, true, true); }},
      {"slice", SliceFilter},
      {"sort", SortFilter},
      {"string", [](const FilterCall& c) { return c.Bind({}, 0), c.Text(); }},
      {"sum", SumFilter},
      {"title", Title},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"truncate", Truncate},
      {"unique", UniqueFilter},
      {"upper", [](const FilterCall& c) { return c.Bind({}, 0), c.Method("upper"); }},
      {"urlencode", UrlEncode},
      {"wordcount", WordCount},
  };
  return *kFilters;
}

}  // namespace

bool IsFilter(std::string_view name) { return Filters().contains(name); }

Value CallFilter(Runtime& runtime, const std::string& name, const Value& input, const Args& args) {
  Charge(1);
  const auto it = Filters().find(name);
  if (it == Filters().end()) Fail("no filter named '" + name + "'");
  return it->second(FilterCall{runtime, input, name, args});
}

}  // namespace titan::text::jinja
