// SPDX-License-Identifier: Apache-2.0
// Methods of strings, lists and dicts that a template may call: those that change nothing.
#include <algorithm>
#include <functional>
#include <map>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {
namespace {

struct Call {
  const std::string& s;
  bool markup;
  std::string what;
  const Args& args;

  Value Text(std::string out) const { return Value::String(std::move(out), markup); }
  Value Texts(std::vector<std::string> parts, ListType type = ListType::kList) const {
    std::vector<Value> out;
    out.reserve(parts.size());
    for (std::string& part : parts) out.push_back(Text(std::move(part)));
    return Value::MakeList(std::move(out), type);
  }
  Bound Bind(std::initializer_list<std::string_view> names, size_t required) const {
    return Bound(what, args, names, required);
  }
  void NoArguments() const { Bind({}, 0); }
  // Escaped text takes other text in escaped.
  std::string Safe(const Value& v) const {
    const std::string& text = RequireString(v, what);
    return markup && !v.IsMarkup() ? EscapeHtml(text) : text;
  }
};

// Byte offset of a code point index, clamped as in a slice.
size_t Offset(const std::string& s, Int index, Int length) {
  if (index < 0) index = std::max(Int{0}, index + length);
  index = std::min(index, length);
  size_t at = 0;
  for (Int i = 0; i < index; ++i) NextCodePoint(s, &at);
  return at;
}

struct Window {
  size_t begin = 0;
  size_t end = 0;
  bool empty_range = false;  // start lies behind the end: nothing, not even "", is found
};

Window WindowOf(const Call& call, const Bound& bound) {
  Window window{0, call.s.size(), false};
  if (!bound.Has(1) && !bound.Has(2)) return window;
  const Int length = CountCodePoints(call.s);
  Charge(call.s.size() / 8);
  const auto start = bound.Integer(1, call.what);
  const auto end = bound.Integer(2, call.what);
  if (start.has_value()) window.begin = Offset(call.s, *start, length);
  if (end.has_value()) window.end = Offset(call.s, *end, length);
  window.empty_range = (start.has_value() && *start > length) || window.begin > window.end;
  return window;
}

Value Find(const Call& call, bool last, bool must) {
  const Bound bound = call.Bind({"sub", "start", "end"}, 1);
  const std::string& sub = RequireString(bound[0], call.what);
  const Window window = WindowOf(call, bound);
  size_t at = std::string_view::npos;
  Charge(call.s.size() / 16);
  if (!window.empty_range) {
    const std::string_view text =
        std::string_view(call.s).substr(window.begin, window.end - window.begin);
    at = last ? text.rfind(sub) : text.find(sub);
  }
  if (at == std::string_view::npos) {
    if (must) Fail("substring not found");
    return Value::Integer(-1);
  }
  return Value::Integer(CountCodePoints(std::string_view(call.s).substr(0, window.begin + at)));
}

Value Affix(const Call& call, bool start) {
  const Bound bound = call.Bind({"prefix", "start", "end"}, 1);
  const Window window = WindowOf(call, bound);
  if (window.empty_range) return Value::Bool(false);
  const std::string_view text =
      std::string_view(call.s).substr(window.begin, window.end - window.begin);
  const auto matches = [&](const Value& affix) {
    const std::string& a = RequireString(affix, call.what);
    return start ? text.starts_with(a) : text.ends_with(a);
  };
  if (bound[0].Is(Kind::kList) && bound[0].AsList().type == ListType::kTuple) {
    const auto& items = bound[0].AsList().items;
    return Value::Bool(std::any_of(items.begin(), items.end(), matches));
  }
  return Value::Bool(matches(bound[0]));
}

std::vector<std::string> SplitSpace(std::string_view s, Int limit, bool from_right) {
  std::vector<std::string> parts;
  std::string_view rest = Strip(s, nullptr, true, true);
  while (!rest.empty() && (limit < 0 || static_cast<Int>(parts.size()) < limit)) {
    // The end of the word at the side we take from.
    size_t cut = from_right ? rest.size() : 0;
    while (from_right ? cut > 0 : cut < rest.size()) {
      size_t start = cut;
      if (from_right) {
        do {
          --start;
        } while (start > 0 && (static_cast<unsigned char>(rest[start]) & 0xC0) == 0x80);
      }
      size_t next = start;
      if (IsSpace(NextCodePoint(rest, &next))) break;
      cut = from_right ? start : next;
    }
    parts.emplace_back(from_right ? rest.substr(cut) : rest.substr(0, cut));
    rest = from_right ? Strip(rest.substr(0, cut), nullptr, false, true)
                      : Strip(rest.substr(cut), nullptr, true, false);
  }
  if (!rest.empty()) {
    // What is left keeps the white space at its far end, which was stripped above; give it back.
    const size_t at = static_cast<size_t>(rest.data() - s.data());
    parts.emplace_back(from_right ? s.substr(0, at + rest.size()) : s.substr(at));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value Split(const Call& call, bool from_right) {
  const Bound bound = call.Bind({"sep", "maxsplit"}, 0);
  const Int limit = bound.Has(1) ? RequireInt(bound[1], call.what) : Int{-1};
  Charge(call.s.size() / 8);
  if (!bound.Has(0) || bound[0].IsNone()) return call.Texts(SplitSpace(call.s, limit, from_right));
  const std::string& sep = RequireString(bound[0], call.what);
  if (sep.empty()) Fail("empty separator");
  std::vector<std::string> parts;
  std::string_view rest = call.s;
  while (limit < 0 || static_cast<Int>(parts.size()) < limit) {
    const size_t at = from_right ? rest.rfind(sep) : rest.find(sep);
    if (at == std::string_view::npos) break;
    parts.emplace_back(from_right ? rest.substr(at + sep.size()) : rest.substr(0, at));
    rest = from_right ? rest.substr(0, at) : rest.substr(at + sep.size());
  }
  parts.emplace_back(rest);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return call.Texts(std::move(parts));
}

Value Partition(const Call& call, bool last) {
  const Bound bound = call.Bind({"sep"}, 1);
  const std::string& sep = RequireString(bound[0], call.what);
  if (sep.empty()) Fail("empty separator");
  const size_t at = last ? call.s.rfind(sep) : call.s.find(sep);
  if (at == std::string::npos) {
    return last ? call.Texts({"", "", call.s}, ListType::kTuple)
                : call.Texts({call.s, "", ""}, ListType::kTuple);
  }
  return call.Texts({call.s.substr(0, at), sep, call.s.substr(at + sep.size())}, ListType::kTuple);
}

Value StripCall(const Call& call, bool left, bool right) {
  const Bound bound = call.Bind({"chars"}, 0);
  const std::string* chars =
      bound.Has(0) && !bound[0].IsNone() ? &RequireString(bound[0], call.what) : nullptr;
  Charge(call.s.size() / 16 * (1 + (chars != nullptr ? chars->size() : 0)));
  return call.Text(std::string(Strip(call.s, chars, left, right)));
}

Value Justify(const Call& call, char side) {
  const Bound bound = call.Bind({"width", "fillchar"}, 1);
  const Int width = RequireInt(bound[0], call.what);
  const std::string fill = bound.Has(1) ? call.Safe(bound[1]) : std::string(" ");
  if (CountCodePoints(fill) != 1) Fail("The fill character must be exactly one character long");
  const Int length = CountCodePoints(call.s);
  if (width <= length) return call.Text(call.s);
  if (width > Int{kMaxTextBytes}) CheckTextSize(kMaxTextBytes + 1);
  const Int pad = width - length;
  // Of an odd rest the left side gets the larger part when the width is odd too.
  const Int before = side == 'l' ? Int{0} : side == 'r' ? pad : pad / 2 + (pad & width & 1);
  std::string out;
  for (Int i = 0; i < before; ++i) out += fill;
  out += call.s;
  for (Int i = before; i < pad; ++i) out += fill;
  return call.Text(std::move(out));
}

Value Replace(const Call& call) {
  const Bound bound = call.Bind({"old", "new", "count"}, 2);
  const std::string from = call.Safe(bound[0]);
  const std::string to = call.Safe(bound[1]);
  const Int limit = bound.Has(2) ? RequireInt(bound[2], call.what) : Int{-1};
  std::string out;
  size_t at = 0;
  Charge(call.s.size() / 16);
  for (Int done = 0; limit < 0 || done < limit; ++done) {
    if (from.empty()) {
      out += to;
      if (at >= call.s.size()) return call.Text(std::move(out));
      size_t next = at;
      NextCodePoint(call.s, &next);
      out += call.s.substr(at, next - at);
      at = next;
    } else {
      const size_t found = call.s.find(from, at);
      if (found == std::string::npos) break;
      out.append(call.s, at, found - at);
      out += to;
      at = found + from.size();
    }
    CheckTextSize(out.size());
  }
  out.append(call.s, at, std::string::npos);
  return call.Text(std::move(out));
}

Value Count(const Call& call) {
  const Bound bound = call.Bind({"sub", "start", "end"}, 1);
  const std::string& sub = RequireString(bound[0], call.what);
  const Window window = WindowOf(call, bound);
  if (window.empty_range) return Value::Integer(0);
  const std::string_view text =
      std::string_view(call.s).substr(window.begin, window.end - window.begin);
  Charge(text.size() / 16);
  if (sub.empty()) return Value::Integer(CountCodePoints(text) + 1);
  Int count = 0;
  for (size_t at = text.find(sub); at != std::string_view::npos;
       at = text.find(sub, at + sub.size())) {
    ++count;
  }
  return Value::Integer(count);
}

Value Join(const Call& call) {
  const Bound bound = call.Bind({"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(bound[0])) {
    if (!item.IsString()) {
      Fail(std::string("sequence item: expected str instance, ") + TypeName(item) + " found");
    }
    if (!std::exchange(first, false)) out += call.s;
    out += call.Safe(item);
    CheckTextSize(out.size());
  }
  return call.Text(std::move(out));
}

Value AllOf(const Call& call, bool (*predicate)(char32_t)) {
  call.NoArguments();
  bool all = !call.s.empty();
  for (size_t i = 0; i < call.s.size() && all;) all = predicate(NextCodePoint(call.s, &i));
  return Value::Bool(all);
}

Value AllCased(const Call& call, bool upper) {
  call.NoArguments();
  return Value::Bool(CallTest(upper ? "upper" : "lower", Value::String(call.s), Args{}));
}

Value IsTitle(const Call& call) {
  call.NoArguments();
  bool seen = false;
  bool in_word = false;
  for (size_t i = 0; i < call.s.size();) {
    const char32_t c = NextCodePoint(call.s, &i);
    if ((IsUpper(c) && in_word) || (IsLower(c) && !in_word)) return Value::Bool(false);
    in_word = IsUpper(c) || IsLower(c);
    seen |= in_word;
  }
  return Value::Bool(seen);
}

Value SwapCase(const Call& call) {
  call.NoArguments();
  std::string out;
  for (size_t i = 0; i < call.s.size();) {
    const size_t at = i;
    const char32_t c = NextCodePoint(call.s, &i);
    const std::string one = call.s.substr(at, i - at);
    out += IsUpper(c) ? ToLower(one) : IsLower(c) ? ToUpper(one) : one;
  }
  return call.Text(std::move(out));
}

Value ZFill(const Call& call) {
  const Bound bound = call.Bind({"width"}, 1);
  const Int width = RequireInt(bound[0], call.what);
  const Int missing = width - CountCodePoints(call.s);
  if (missing <= 0) return call.Text(call.s);
  if (width > Int{kMaxTextBytes}) CheckTextSize(kMaxTextBytes + 1);
  const bool sign = call.s.starts_with('-') || call.s.starts_with('+');
  std::string out = call.s;
  out.insert(sign ? 1 : 0, static_cast<size_t>(missing), '0');
  return call.Text(std::move(out));
}

Value RemoveAffix(const Call& call, bool prefix) {
  const Bound bound = call.Bind({"affix"}, 1);
  const std::string& affix = RequireString(bound[0], call.what);
  if (affix.empty()) return call.Text(call.s);
  if (prefix && call.s.starts_with(affix)) return call.Text(call.s.substr(affix.size()));
  if (!prefix && call.s.ends_with(affix)) {
    return call.Text(call.s.substr(0, call.s.size() - affix.size()));
  }
  return call.Text(call.s);
}

Value Format(const Call& call) {
  if (!call.markup) {
    return call.Text(FormatBraces(call.s, call.args.positional, call.args.named));
  }
  const auto escaped = [](const Value& v) {
    return v.IsString() && !v.IsMarkup() ? Value::String(EscapeHtml(v.Str()), true) : v;
  };
  Args args;
  for (const Value& v : call.args.positional) args.positional.push_back(escaped(v));
  for (const auto& [name, v] : call.args.named) args.named.emplace_back(name, escaped(v));
  return call.Text(FormatBraces(call.s, args.positional, args.named));
}

using StringMethod = Value (*)(const Call&);

const std::map<std::string_view, StringMethod>& StringMethods() {
  static const auto* const kMethods = new std::map<std::string_view, StringMethod>{
      {"capitalize", [](const Call& c) { return c.NoArguments(), c.Text(ToCapitalized(c.s)); }},
      {"casefold", [](const Call& c) { return c.NoArguments(), c.Text(ToLower(c.s)); }},
      {"center", [](const Call& c) { return Justify(c, 'c'); }},
      {"count", Count},
      {"endswith", [](const Call& c) { return Affix(c, false); }},
      {"find", [](const Call& c) { return Find(c, false, false); }},
      {"format", Format},
      {"index", [](const Call& c) { return Find(c, false, true); }},
      {"isalnum", [](const Call& c) { return AllOf(c, IsAlnum); }},
      {"isalpha", [](const Call& c) { return AllOf(c, IsAlpha); }},
      {"isdecimal", [](const Call& c) { return AllOf(c, IsDecimal); }},
      {"isdigit", [](const Call& c) { return AllOf(c, IsDecimal); }},
      {"isnumeric", [](const Call& c) { return AllOf(c, IsDecimal); }},
      {"islower", [](const Call& c) { return AllCased(c, false); }},
      {"isspace", [](const Call& c) { return AllOf(c, IsSpace); }},
      {"istitle", IsTitle},
      {"isupper", [](const Call& c) { return AllCased(c, true); }},
      {"join", Join},
      {"ljust", [](const Call& c) { return Justify(c, 'l'); }},
      {"lower", [](const Call& c) { return c.NoArguments(), c.Text(ToLower(c.s)); }},
      {"lstrip", [](const Call& c) { return StripCall(c, true, false); }},
      {"partition", [](const Call& c) { return Partition(c, false); }},
      {"removeprefix", [](const Call& c) { return RemoveAffix(c, true); }},
      {"removesuffix", [](const Call& c) { return RemoveAffix(c, false); }},
      {"replace", Replace},
      {"rfind", [](const Call& c) { return Find(c, true, false); }},
      {"rindex", [](const Call& c) { return Find(c, true, true); }},
      {"rjust", [](const Call& c) { return Justify(c, 'r'); }},
      {"rpartition", [](const Call& c) { return Partition(c, true); }},
      {"rsplit", [](const Call& c) { return Split(c, true); }},
      {"rstrip", [](const Call& c) { return StripCall(c, false, true); }},
      {"split", [](const Call& c) { return Split(c, false); }},
      {"splitlines",
       [](const Call& c) { return c.Texts(SplitLines(c.s, c.Bind({"keepends"}, 0).Flag(0))); }},
      {"startswith", [](const Call& c) { return Affix(c, true); }},
      {"strip", [](const Call& c) { return StripCall(c, true, true); }},
      {"swapcase", SwapCase},
      {"title", [](const Call& c) { return c.NoArguments(), c.Text(ToTitle(c.s)); }},
      {"upper", [](const Call& c) { return c.NoArguments(), c.Text(ToUpper(c.s)); }},
      {"zfill", ZFill},
  };
  return *kMethods;
}

Value CallListMethod(const Value& self, const std::string& name, const Args& args) {
  const auto& items = self.AsList().items;
  if (name == "copy") return Bound(name, args, {}, 0), self;
  if (name == "count") {
    const Bound bound("count", args, {"value"}, 1);
    Int count = 0;
    for (const Value& item : items) count += Equal(item, bound[0]) ? 1 : 0;
    return Value::Integer(count);
  }
  const Bound bound("index", args, {"value"}, 1);
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(items[i], bound[0])) return Value::Integer(static_cast<Int>(i));
  }
  Fail("the value is not in the list");
}

Value CallDictMethod(const Value& self, const std::string& name, const Args& args) {
  const auto& items = self.AsDict().items;
  if (name == "get") {
    const Bound bound("get", args, {"key", "default"}, 1);
    const Value* found = DictFind(self.AsDict(), bound[0]);
    if (found != nullptr) return *found;
    return bound.Has(1) ? bound[1] : Value::None();
  }
  const Bound bound(name, args, {}, 0);
  if (name == "copy") return self;
  std::vector<Value> out;
  out.reserve(items.size());
  for (const auto& [key, value] : items) {
    if (name == "keys") {
      out.push_back(key);
    } else if (name == "values") {
      out.push_back(value);
    } else {
      out.push_back(Value::MakeList({key, value}, ListType::kTuple));
    }
  }
  return Value::MakeList(std::move(out), ListType::kView, "dict_" + name);
}

}  // namespace

Value CallMethod(const Value& self, const std::string& name, const Args& args) {
  if (self.Is(Kind::kList)) return CallListMethod(self, name, args);
  if (self.Is(Kind::kDict)) return CallDictMethod(self, name, args);
  if (self.IsString()) {
    const auto it = StringMethods().find(name);
    if (it != StringMethods().end()) {
      return it->second(Call{self.Str(), self.IsMarkup(), name, args});
    }
  }
  Fail(std::string("'") + TypeName(self) + "' object has no method '" + name + "'");
}

}  // namespace titan::text::jinja
