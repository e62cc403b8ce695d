// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {
namespace {

struct Call {
  Runtime& runtime;
  const Value& input;
  const std::string& name;
  const Args& args;

  Bound Bind(std::initializer_list<std::string_view> names, size_t required) const {
    return Bound("the filter '" + name + "'", args, names, required);
  }
  // The input as text; escaped text stays escaped.
  Value Text() const { return input.IsString() ? input : Value::String(ToText(input)); }
  Value Method(const std::string& method, Args method_args = {}) const {
    return CallMethod(Text(), method, method_args);
  }
};

Value FoldCase(const Value& v, bool case_sensitive) {
  return v.IsString() && !case_sensitive ? Value::String(ToLower(v.Str())) : v;
}

Value Attribute(const Value& item, const Value& path, const Value& otherwise) {
  if (path.IsUndefined() || path.IsNone()) return item;
  Value v = GetPath(item, path);
  return v.IsUndefined() && !otherwise.IsUndefined() && !otherwise.IsNone() ? otherwise : v;
}

// The keys to sort by: attribute may name several, separated by commas.
Value SortKey(const Value& item, const Value& attribute, bool case_sensitive) {
  if (attribute.IsString() && attribute.Str().find(',') != std::string::npos) {
    std::vector<Value> keys;
    std::string_view rest = attribute.Str();
    while (true) {
      const size_t comma = rest.find(',');
      keys.push_back(FoldCase(GetPath(item, Value::String(std::string(rest.substr(0, comma)))),
                              case_sensitive));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    return Value::MakeList(std::move(keys));
  }
  Value key = FoldCase(Attribute(item, attribute, Value()), case_sensitive);
  // In a list of one, so that keys which are all missing are equal.
  return attribute.IsUndefined() || attribute.IsNone() ? key : Value::MakeList({std::move(key)});
}

// Stable; a failing comparison fails before the sort begins to move anything.
std::vector<Value> Sorted(std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  for (const auto& item : keyed) Compare(item.first, keyed.front().first, "<");
  std::vector<size_t> order(keyed.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int way = Compare(keyed[a].first, keyed[b].first, "<");
    return reverse ? way == 1 : way == -1;
  });
  std::vector<Value> out;
  out.reserve(order.size());
  for (size_t i : order) out.push_back(std::move(keyed[i].second));
  return out;
}

Value Sort(const Call& c) {
  const Bound b = c.Bind({"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : Iterate(c.input)) {
    keyed.emplace_back(SortKey(item, b[2], b.Flag(1)), item);
  }
  return Value::MakeList(Sorted(std::move(keyed), b.Flag(0)));
}

Value DictSort(const Call& c) {
  const Bound b = c.Bind({"case_sensitive", "by", "reverse"}, 0);
  if (c.input.IsUndefined()) Fail(c.input.UndefinedMessage());
  if (!c.input.Is(Kind::kDict)) {
    Fail(std::string("'") + TypeName(c.input) + "' object has no attribute 'items'");
  }
  const std::string by = b.Has(1) ? RequireString(b[1], "by") : "key";
  if (by != "key" && by != "value") Fail("You can only sort by either \"key\" or \"value\"");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : c.input.AsDict().items) {
    keyed.emplace_back(FoldCase(by == "key" ? key : value, b.Flag(0)),
                       Value::MakeList({key, value}, ListType::kTuple));
  }
  return Value::MakeList(Sorted(std::move(keyed), b.Flag(2)));
}

Value Unique(const Call& c) {
  const Bound b = c.Bind({"case_sensitive", "attribute"}, 0);
  std::vector<Value> seen;
  std::vector<Value> out;
  for (const Value& item : Iterate(c.input)) {
    const Value key = FoldCase(Attribute(item, b[1], Value()), b.Flag(0));
    CheckHashable(key);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& v) { return Equal(v, key); }))
      continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return Value::MakeIterator(std::move(out));
}

Value MinMax(const Call& c, int wanted) {
  const Bound b = c.Bind({"case_sensitive", "attribute"}, 0);
  const Items items = Iterate(c.input);
  if (items->empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : *items) {
    Value key = FoldCase(Attribute(item, b[1], Value()), b.Flag(0));
    if (best == nullptr || Compare(key, best_key, wanted < 0 ? "<" : ">") == wanted) {
      best = &item;
      best_key = std::move(key);
    }
  }
  return *best;
}

Value Sum(const Call& c) {
  const Bound b = c.Bind({"attribute", "start"}, 0);
  Value total = b.Has(1) ? b[1] : Value::Integer(0);
  if (total.IsString()) Fail("sum() can't sum strings; use the filter join");
  for (const Value& item : Iterate(c.input)) {
    total = BinaryOp("+", total, Attribute(item, b[0], Value()));
  }
  return total;
}

Value GroupBy(const Call& c) {
  const Bound b = c.Bind({"attribute", "default", "case_sensitive"}, 1);
  std::vector<std::pair<Value, Value>> keyed;
  const auto key_of = [&](const Value& item) {
    return FoldCase(Attribute(item, b[0], b[1]), b.Flag(2));
  };
  for (const Value& item : Iterate(c.input)) keyed.emplace_back(key_of(item), item);
  const std::vector<Value> sorted = Sorted(std::move(keyed), false);
  std::vector<Value> groups;
  for (size_t i = 0; i < sorted.size();) {
    const Value key = key_of(sorted[i]);
    std::vector<Value> members;
    const Value shown = Attribute(sorted[i], b[0], b[1]);
    for (; i < sorted.size() && Equal(key_of(sorted[i]), key); ++i) members.push_back(sorted[i]);
    groups.push_back(
        Value::MakeList({shown, Value::MakeList(std::move(members))}, ListType::kTuple));
  }
  return Value::MakeList(std::move(groups));
}

Args WithoutFirst(const Args& args, size_t count) {
  Args rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(count),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

Value Map(const Call& c) {
  std::vector<Value> out;
  if (!Truthy(c.input)) return Value::MakeIterator({});
  const Items items = Iterate(c.input);
  if (c.args.positional.empty()) {
    const Bound b = c.Bind({"attribute", "default"}, 0);
    if (!b.Has(0)) Fail("map requires a filter argument");
    for (const Value& item : *items) out.push_back(Attribute(item, b[0], b[1]));
    return Value::MakeIterator(std::move(out));
  }
  const std::string filter = RequireString(c.args.positional[0], "the filter of map");
  const Args rest = WithoutFirst(c.args, 1);
  if (++c.runtime.filter_depth > 16) FailLimit("map calls itself more than 16 levels deep");
  for (const Value& item : *items) out.push_back(CallFilter(c.runtime, filter, item, rest));
  --c.runtime.filter_depth;
  return Value::MakeIterator(std::move(out));
}

Value Select(const Call& c, bool keep, bool by_attribute) {
  const size_t first = by_attribute ? 1 : 0;
  const auto& given = c.args.positional;
  if (given.size() < first) Fail("Missing parameter for attribute name");
  const Args rest = WithoutFirst(c.args, std::min(first + 1, given.size()));
  std::vector<Value> out;
  if (!Truthy(c.input)) return Value::MakeIterator({});
  for (const Value& item : Iterate(c.input)) {
    const Value tested = by_attribute ? GetPath(item, given[0]) : item;
    const bool pass =
        given.size() > first
            ? CallTest(RequireString(given[first], "the name of a test"), tested, rest)
            : Truthy(tested);
    if (pass == keep) out.push_back(item);
  }
  return Value::MakeIterator(std::move(out));
}

Value Join(const Call& c) {
  const Bound b = c.Bind({"d", "attribute"}, 0);
  const std::string separator = b.Has(0) ? ToText(b[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(c.input)) {
    if (!std::exchange(first, false)) out += separator;
    out += ToText(Attribute(item, b[1], Value()));
    CheckTextSize(out.size());
  }
  return Value::String(std::move(out));
}

Value First(const Call& c) {
  c.Bind({}, 0);
  const Items items = Iterate(c.input);
  return items->empty() ? Value::Undefined("No first item, sequence was empty.") : items->front();
}

Value Last(const Call& c) {
  c.Bind({}, 0);
  if (c.input.Is(Kind::kIterator)) Fail("'generator' object is not reversible");
  const Items items = Iterate(c.input);
  return items->empty() ? Value::Undefined("No last item, sequence was empty.") : items->back();
}

Value Reverse(const Call& c) {
  c.Bind({}, 0);
  if (c.input.IsString()) {
    return GetSlice(c.input, Value::None(), Value::None(), Value::Integer(-1));
  }
  std::vector<Value> items = *Iterate(c.input);
  std::reverse(items.begin(), items.end());
  return c.input.Is(Kind::kIterator) ? Value::MakeList(std::move(items))
                                     : Value::MakeIterator(std::move(items));
}

Value Batch(const Call& c) {
  const Bound b = c.Bind({"linecount", "fill_with"}, 1);
  const Int size = RequireInt(b[0], "linecount");
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& item : Iterate(c.input)) {
    if (static_cast<Int>(batch.size()) == size) {
      batches.push_back(Value::MakeList(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (b.Has(1) && !b[1].IsNone()) {
      while (static_cast<Int>(batch.size()) < size) {
        Charge(1);
        batch.push_back(b[1]);
      }
    }
    batches.push_back(Value::MakeList(std::move(batch)));
  }
  return Value::MakeIterator(std::move(batches));
}

Value Slice(const Call& c) {
  const Bound b = c.Bind({"slices", "fill_with"}, 1);
  const Int count = RequireInt(b[0], "slices");
  if (count <= 0) Fail("slices must be positive");
  const Items items = Iterate(c.input);
  const auto length = static_cast<Int>(items->size());
  std::vector<Value> out;
  size_t at = 0;
  for (Int i = 0; i < count; ++i) {
    Charge(1);
    const auto size = static_cast<size_t>(length / count + (i < length % count ? 1 : 0));
    std::vector<Value> part(items->begin() + static_cast<ptrdiff_t>(at),
                            items->begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
    if (b.Has(1) && !b[1].IsNone() && i >= length % count) part.push_back(b[1]);
    out.push_back(Value::MakeList(std::move(part)));
  }
  return Value::MakeIterator(std::move(out));
}

Value Title(const Call& c) {
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

Value Truncate(const Call& c) {
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

Value Indent(const Call& c) {
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

Value ToInt(const Call& c) {
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

Value ToFloat(const Call& c) {
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

Value Round(const Call& c) {
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

Value ToJsonFilter(const Call& c) {
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

Value UrlEncode(const Call& c) {
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

Value WordCount(const Call& c) {
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

Value ItemsFilter(const Call& c) {
  c.Bind({}, 0);
  if (c.input.IsUndefined()) return Value::MakeIterator({});
  if (!c.input.Is(Kind::kDict)) Fail("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, value] : c.input.AsDict().items) {
    out.push_back(Value::MakeList({key, value}, ListType::kTuple));
  }
  return Value::MakeIterator(std::move(out));
}

Value Default(const Call& c) {
  const Bound b = c.Bind({"default_value", "boolean"}, 0);
  if (c.input.IsUndefined() || (b.Flag(1) && !Truthy(c.input))) {
    return b.Has(0) ? b[0] : Value::String("");
  }
  return c.input;
}

Value ReplaceFilter(const Call& c) {
  const Bound b = c.Bind({"old", "new", "count"}, 2);
  Args args;
  args.positional = {Value::String(ToText(b[0])), Value::String(ToText(b[1]))};
  if (b.Has(2) && !b[2].IsNone()) args.positional.push_back(b[2]);
  return CallMethod(Value::String(ToText(c.input)), "replace", args);
}

Value Trim(const Call& c) {
  const Bound b = c.Bind({"chars"}, 0);
  Args args;
  if (b.Has(0)) args.positional.push_back(b[0]);
  return c.Method("strip", std::move(args));
}

Value Center(const Call& c) {
  const Bound b = c.Bind({"width"}, 0);
  return c.Method("center", {{b.Has(0) ? b[0] : Value::Integer(80)}, {}});
}

Value FormatFilter(const Call& c) {
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

Value Abs(const Call& c) {
  c.Bind({}, 0);
  if (c.input.IsUndefined()) Fail(c.input.UndefinedMessage());
  if (!c.input.IsNumber()) {
    Fail(std::string("bad operand type for abs(): '") + TypeName(c.input) + "'");
  }
  if (c.input.Is(Kind::kFloat)) return Value::Float(std::fabs(c.input.AsDouble()));
  return c.input.AsInt() < 0 ? UnaryOp("-", c.input) : UnaryOp("+", c.input);
}

Value Attr(const Call& c) {
  const Bound b = c.Bind({"name"}, 1);
  Value out;
  const std::string& name = RequireString(b[0], "name");
  if (c.input.IsUndefined()) Fail(c.input.UndefinedMessage());
  if (FindAttribute(c.input, name, &out)) return out;
  return Value::Undefined(std::string("'") + TypeName(c.input) + " object' has no attribute '" +
                          name + "'");
}

Value Escape(const Call& c, bool force) {
  c.Bind({}, 0);
  if (c.input.IsMarkup() && !force) return c.input;
  return Value::String(EscapeHtml(ToText(c.input)), true);
}

using Filter = Value (*)(const Call&);

const std::map<std::string_view, Filter>& Filters() {
  static const auto* const kFilters = new std::map<std::string_view, Filter>{
      {"abs", Abs},
      {"attr", Attr},
      {"batch", Batch},
      {"capitalize", [](const Call& c) { return c.Bind({}, 0), c.Method("capitalize"); }},
      {"center", Center},
      {"count", [](const Call& c) { return c.Bind({}, 0), Value::Integer(Length(c.input)); }},
      {"d", Default},
      {"default", Default},
      {"dictsort", DictSort},
      {"e", [](const Call& c) { return Escape(c, false); }},
      {"escape", [](const Call& c) { return Escape(c, false); }},
      {"first", First},
      {"float", ToFloat},
      {"forceescape", [](const Call& c) { return Escape(c, true); }},
      {"format", FormatFilter},
      {"groupby", GroupBy},
      {"indent", Indent},
      {"int", ToInt},
      {"items", ItemsFilter},
      {"join", Join},
      {"last", Last},
      {"length", [](const Call& c) { return c.Bind({}, 0), Value::Integer(Length(c.input)); }},
      {"list", [](const Call& c) { return c.Bind({}, 0), Value::MakeList(*Iterate(c.input)); }},
      {"lower", [](const Call& c) { return c.Bind({}, 0), c.Method("lower"); }},
      {"map", Map},
      {"max", [](const Call& c) { return MinMax(c, 1); }},
      {"min", [](const Call& c) { return MinMax(c, -1); }},
      {"reject", [](const Call& c) { return Select(c, false, false); }},
      {"rejectattr", [](const Call& c) { return Select(c, false, true); }},
      {"replace", ReplaceFilter},
      {"reverse", Reverse},
      {"round", Round},
      {"safe", [](const Call& c) { return c.Bind({}, 0), Value::String(ToText(c.input), true); }},
      {"select", [](const Call& c) { return Select(c, true, false); }},
      {"selectattr", [](const Call& c) { return Select(c, true, true); }},
      {"slice", Slice},
      {"sort", Sort},
      {"string", [](const Call& c) { return c.Bind({}, 0), c.Text(); }},
      {"sum", Sum},
      {"title", Title},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"truncate", Truncate},
      {"unique", Unique},
      {"upper", [](const Call& c) { return c.Bind({}, 0), c.Method("upper"); }},
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
  return it->second(Call{runtime, input, name, args});
}

}  // namespace titan::text::jinja
