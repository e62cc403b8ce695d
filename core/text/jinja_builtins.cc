// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_builtins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {

Bound::Bound(std::string_view what, const Args& args, std::initializer_list<std::string_view> names,
             size_t required)
    : values_(names.size()), present_(names.size(), false) {
  if (args.positional.size() > names.size()) {
    Fail(std::string(what) + " takes at most " + std::to_string(names.size()) +
         " argument(s), not " + std::to_string(args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) {
    values_[i] = args.positional[i];
    present_[i] = true;
  }
  for (const auto& [name, value] : args.named) {
    const auto* it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) Fail(std::string(what) + " has no argument '" + name + "'");
    const auto i = static_cast<size_t>(it - names.begin());
    if (present_[i]) Fail(std::string(what) + " was given '" + name + "' twice");
    values_[i] = value;
    present_[i] = true;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!present_[i]) {
      Fail(std::string(what) + " needs the argument '" + std::string(names.begin()[i]) + "'");
    }
  }
}

std::optional<Int> Bound::Integer(size_t i, std::string_view name) const {
  if (!present_[i] || values_[i].IsNone()) return std::nullopt;
  return RequireInt(values_[i], name);
}

namespace {

// ---- tests

constexpr std::string_view kTests[] = {
    "!=",      "<",        "<=",       "==",          "=",        ">",           ">=",
    "boolean", "callable", "defined",  "divisibleby", "eq",       "equalto",     "escaped",
    "even",    "false",    "filter",   "float",       "ge",       "greaterthan", "gt",
    "in",      "integer",  "iterable", "le",          "lessthan", "lower",       "lt",
    "mapping", "ne",       "none",     "number",      "odd",      "sameas",      "sequence",
    "string",  "test",     "true",     "undefined",   "upper"};

bool CasedAs(const Value& v, bool upper) {
  const std::string text = ToText(v);
  bool seen = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    if (upper ? IsLower(c) : IsUpper(c)) return false;
    seen |= upper ? IsUpper(c) : IsLower(c);
  }
  return seen;
}

bool IsOrderTest(std::string_view name, std::string_view a, std::string_view b,
                 std::string_view c) {
  return name == a || name == b || name == c;
}

}  // namespace

bool IsTest(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

bool CallTest(const std::string& name, const Value& v, const Args& args) {
  const std::string what = "the test '" + name + "'";
  const auto one = [&]() -> Value { return Bound(what, args, {"other"}, 1)[0]; };
  if (name == "defined") return Bound(what, args, {}, 0), !v.IsUndefined();
  if (name == "undefined") return v.IsUndefined();
  if (name == "none") return v.IsNone();
  if (name == "string") return v.IsString();
  if (name == "mapping") return v.Is(Kind::kDict);
  if (name == "boolean") return v.Is(Kind::kBool);
  if (name == "true") return v.Is(Kind::kBool) && v.AsBool();
  if (name == "false") return v.Is(Kind::kBool) && !v.AsBool();
  if (name == "integer") return v.Is(Kind::kInt);
  if (name == "float") return v.Is(Kind::kFloat);
  if (name == "number") return v.IsNumber();
  if (name == "sequence") {
    return v.IsString() || v.Is(Kind::kDict) || v.IsUndefined() ||
           (v.Is(Kind::kList) && v.AsList().type != ListType::kView);
  }
  if (name == "iterable") {
    return v.IsString() || v.Is(Kind::kDict) || v.Is(Kind::kList) || v.Is(Kind::kIterator) ||
           v.IsUndefined() || v.Is(Kind::kLoop);
  }
  if (name == "callable") {
    return v.Is(Kind::kFunction) || v.Is(Kind::kMacro) || v.Is(Kind::kLoop) || v.IsUndefined();
  }
  if (name == "escaped") return v.IsMarkup();
  if (name == "lower") return CasedAs(v, false);
  if (name == "upper") return CasedAs(v, true);
  if (name == "odd") return Equal(BinaryOp("%", v, Value::Integer(2)), Value::Integer(1));
  if (name == "even") return !Truthy(BinaryOp("%", v, Value::Integer(2)));
  if (name == "divisibleby") return !Truthy(BinaryOp("%", v, one()));
  if (name == "in") return Contains(one(), v);
  if (name == "filter") return IsFilter(RequireString(v, "the name of a filter"));
  if (name == "test") return IsTest(RequireString(v, "the name of a test"));
  if (name == "sameas") {
    const Value other = one();
    if (v.kind() != other.kind()) return false;
    const bool shared = v.Is(Kind::kList) || v.Is(Kind::kDict) || v.Is(Kind::kIterator);
    return shared ? v.Identity() == other.Identity() : Equal(v, other);
  }
  if (IsOrderTest(name, "eq", "==", "equalto") || name == "=") return Equal(v, one());
  if (IsOrderTest(name, "ne", "!=", "!=")) return !Equal(v, one());
  const Value other = one();
  if (IsOrderTest(name, "lt", "<", "lessthan")) return Compare(v, other, "<") == -1;
  if (IsOrderTest(name, "gt", ">", "greaterthan")) return Compare(v, other, ">") == 1;
  if (IsOrderTest(name, "le", "<=", "<=")) {
    const int order = Compare(v, other, "<=");
    return order == -1 || order == 0;
  }
  if (IsOrderTest(name, "ge", ">=", ">=")) {
    const int order = Compare(v, other, ">=");
    return order == 1 || order == 0;
  }
  Fail("no test named '" + name + "'");
}

// ---- attributes

namespace {

template <size_t N>
bool OneOf(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr auto kStringMethods = std::to_array<std::string_view>(
    {"capitalize", "casefold", "center",     "count",      "endswith",     "find",
     "format",     "index",    "isalnum",    "isalpha",    "isdecimal",    "isdigit",
     "isnumeric",  "islower",  "isspace",    "istitle",    "isupper",      "join",
     "ljust",      "lower",    "lstrip",     "partition",  "removeprefix", "removesuffix",
     "replace",    "rfind",    "rindex",     "rjust",      "rpartition",   "rsplit",
     "rstrip",     "split",    "splitlines", "startswith", "strip",        "swapcase",
     "title",      "upper",    "zfill"});
constexpr auto kListMethods = std::to_array<std::string_view>({"count", "index"});
constexpr auto kListUnsafe = std::to_array<std::string_view>(
    {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
constexpr auto kDictMethods =
    std::to_array<std::string_view>({"copy", "get", "items", "keys", "values"});
constexpr auto kDictUnsafe =
    std::to_array<std::string_view>({"clear", "pop", "popitem", "setdefault", "update"});

}  // namespace

bool FindAttribute(const Value& v, const std::string& name, Value* out) {
  bool method = false;
  bool unsafe = false;
  switch (v.kind()) {
    case Kind::kString:
      method = OneOf(kStringMethods, name);
      break;
    case Kind::kList:
      if (v.AsList().type == ListType::kList) {
        method = OneOf(kListMethods, name) || name == "copy";
        unsafe = OneOf(kListUnsafe, name);
      } else {
        method = v.AsList().type != ListType::kView && OneOf(kListMethods, name);
      }
      break;
    case Kind::kDict:
      method = OneOf(kDictMethods, name);
      unsafe = OneOf(kDictUnsafe, name);
      break;
    case Kind::kNamespace:
      for (const auto& [key, value] : v.AsNamespace().attributes) {
        if (key == name) {
          *out = value;
          return true;
        }
      }
      return false;
    case Kind::kLoop:
      return FindLoopAttribute(v, name, out);
    default:
      break;
  }
  if (unsafe || name.starts_with("__")) {
    // A dict may well hold an item of such a name; methods of Python objects come first there too.
    if (name.starts_with("__") && v.Is(Kind::kDict) && DictFind(v.AsDict(), name) != nullptr) {
      return false;
    }
    *out = Value::Undefined("access to attribute '" + name + "' of '" + TypeName(v) +
                            "' object is unsafe");
    return true;
  }
  if (!method) return false;
  *out = Value::MakeMethod(v, name);
  return true;
}

// ---- global functions

namespace {

Value Range(const Args& args) {
  const Bound bound("range", args, {"start", "stop", "step"}, 1);
  Int start = RequireInt(bound[0], "range");
  Int stop = start;
  const Int step = bound.Has(2) ? RequireInt(bound[2], "range") : Int{1};
  if (bound.Has(1)) {
    stop = RequireInt(bound[1], "range");
  } else {
    start = 0;
  }
  if (step == 0) Fail("range() arg 3 must not be zero");
  constexpr Int kBound = Int{1} << 62;
  if (start > kBound || start < -kBound || stop > kBound || stop < -kBound || step > kBound ||
      step < -kBound) {
    Fail("range: a number is out of range");
  }
  const Int span = step > 0 ? stop - start : start - stop;
  const Int stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? Int{0} : (span + stride - 1) / stride;
  if (count > 100000) FailLimit("Range too big: a range has at most 100000 elements");
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) items.push_back(Value::Integer(start + i * step));
  std::string text = "range(" + IntToString(start) + ", " + IntToString(stop);
  if (step != 1) text += ", " + IntToString(step);
  return Value::MakeList(std::move(items), ListType::kRange, text + ")");
}

std::vector<std::pair<Value, Value>> DictItems(std::string_view what, const Args& args) {
  if (args.positional.size() > 1)
    Fail(std::string(what) + " takes at most one positional argument");
  std::vector<std::pair<Value, Value>> items;
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.Is(Kind::kDict)) {
      items = from.AsDict().items;
    } else {
      for (const Value& pair : Iterate(from)) {
        const Items parts = Iterate(pair);
        if (parts->size() != 2) Fail(std::string(what) + " needs pairs");
        DictSet(&items, (*parts)[0], (*parts)[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) DictSet(&items, Value::String(name), value);
  return items;
}

Value MakeNamespaceValue(Runtime& runtime, const Args& args) {
  auto ns = std::make_unique<Namespace>();
  for (auto& [key, value] : DictItems("namespace", args)) {
    const std::string& name = RequireString(key, "an attribute of a namespace");
    if (name.starts_with("_")) Fail("a namespace cannot hold '" + name + "': it starts with _");
    CheckStorable(value);
    ns->attributes.emplace_back(name, value);
  }
  Charge(8);
  runtime.namespaces.push_back(std::move(ns));
  return Value::MakeNamespace(runtime.namespaces.back().get());
}

Value StrftimeNow(Runtime& runtime, const Args& args) {
  const Bound bound("strftime_now", args, {"format"}, 1);
  const std::string& format = RequireString(bound[0], "strftime_now");
  if (!runtime.now.has_value()) Fail("strftime_now: this render was given no time");
  const auto days = std::chrono::floor<std::chrono::days>(*runtime.now);
  const std::chrono::year_month_day date(days);
  const std::chrono::hh_mm_ss time(*runtime.now - days);
  const std::chrono::weekday weekday(days);
  const auto year_start =
      std::chrono::sys_days(date.year() / std::chrono::January / std::chrono::day(1));
  static constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                            "May",       "June",     "July",     "August",
                                            "September", "October",  "November", "December"};
  static constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                          "Thursday", "Friday", "Saturday"};
  const int year = static_cast<int>(date.year());
  const int month = static_cast<int>(static_cast<unsigned>(date.month()));
  const int day = static_cast<int>(static_cast<unsigned>(date.day()));
  const int hour = static_cast<int>(time.hours().count());
  const int minute = static_cast<int>(time.minutes().count());
  const int second = static_cast<int>(time.seconds().count());
  const int hour12 = hour % 12 == 0 ? 12 : hour % 12;
  const auto day_of_week = weekday.c_encoding();
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out += format[i];
      continue;
    }
    const bool bare = format[i + 1] == '-' && i + 2 < format.size();
    i += bare ? 2 : 1;
    const auto number = [&](int value, int width, char fill = '0') {
      std::string digits = std::to_string(value);
      if (!bare) {
        while (static_cast<int>(digits.size()) < width) digits.insert(digits.begin(), fill);
      }
      out += digits;
    };
    const auto clock = [&](bool seconds) {
      char buffer[32];
      std::snprintf(buffer, sizeof(buffer), seconds ? "%02d:%02d:%02d" : "%02d:%02d", hour, minute,
                    second);
      out += buffer;
    };
    switch (format[i]) {
      case 'Y':
        number(year, 4);
        break;
      case 'y':
        number(year % 100, 2);
        break;
      case 'm':
        number(month, 2);
        break;
      case 'd':
        number(day, 2);
        break;
      case 'e':
        number(day, 2, ' ');
        break;
      case 'H':
        number(hour, 2);
        break;
      case 'I':
        number(hour12, 2);
        break;
      case 'M':
        number(minute, 2);
        break;
      case 'S':
        number(second, 2);
        break;
      case 'f':
        out += "000000";
        break;
      case 'j':
        number(static_cast<int>((days - year_start).count()) + 1, 3);
        break;
      case 'B':
        out += kMonths[month - 1];
        break;
      case 'b':
      case 'h':
        out += std::string(kMonths[month - 1], 3);
        break;
      case 'A':
        out += kDays[day_of_week];
        break;
      case 'a':
        out += std::string(kDays[day_of_week], 3);
        break;
      case 'p':
        out += hour < 12 ? "AM" : "PM";
        break;
      case 'F':
        number(year, 4);
        out += '-';
        number(month, 2);
        out += '-';
        number(day, 2);
        break;
      case 'T':
        clock(true);
        break;
      case 'R':
        clock(false);
        break;
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case '%':
        out += '%';
        break;
      default:
        Fail(std::string("strftime_now: the conversion %") + format[i] + " is not supported");
    }
  }
  return Value::String(std::move(out));
}

}  // namespace

bool IsGlobalFunction(std::string_view name) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"dict", "namespace", "raise_exception", "range", "strftime_now"});
  return OneOf(kNames, name);
}

Value CallGlobal(Runtime& runtime, const std::string& name, const Args& args) {
  if (name == "range") return Range(args);
  if (name == "dict") return Value::MakeDict(DictItems("dict", args));
  if (name == "namespace") return MakeNamespaceValue(runtime, args);
  if (name == "strftime_now") return StrftimeNow(runtime, args);
  if (name == "raise_exception") {
    Fail(ToText(Bound("raise_exception", args, {"message"}, 1)[0]));
  }
  Fail("'" + name + "' is undefined");
}

}  // namespace titan::text::jinja
