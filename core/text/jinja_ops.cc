// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_ops.h"

#include <algorithm>
#include <cmath>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {
namespace {

void RequireDefined(const Value& v) {
  if (v.IsUndefined()) Fail(v.UndefinedMessage());
}

[[noreturn]] void Unsupported(std::string_view op, const Value& a, const Value& b) {
  Fail("unsupported operand type(s) for " + std::string(op) + ": '" + TypeName(a) + "' and '" +
       TypeName(b) + "'");
}

// The value is read after the operation that writes it, hence the reference.
Int Checked(bool overflow, const Int& value) {
  if (overflow) Fail("an integer does not fit into 128 bits");
  return value;
}

Value Power(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral() && b.AsInt() >= 0) {
    Int result = 1;
    Int base = a.AsInt();
    if (base == 0 || base == 1) return Value::Integer(b.AsInt() == 0 ? Int{1} : base);
    if (base == -1) return Value::Integer(b.AsInt() % 2 == 0 ? 1 : -1);
    for (Int i = 0; i < b.AsInt(); ++i) {  // at most 127 rounds before it overflows
      result = Checked(__builtin_mul_overflow(result, base, &result), result);
    }
    return Value::Integer(result);
  }
  const double x = a.AsDouble();
  const double y = b.AsDouble();
  if (x == 0 && y < 0) Fail("0.0 cannot be raised to a negative power");
  const double result = std::pow(x, y);
  if (std::isnan(result) && !std::isnan(x) && !std::isnan(y)) {
    Fail("a negative number cannot be raised to a fraction");
  }
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) Fail("the power is out of range");
  return Value::Float(result);
}

Value Divide(std::string_view op, const Value& a, const Value& b) {
  if (b.AsDouble() == 0) Fail(op == "%" ? "integer modulo by zero" : "division by zero");
  if (op == "/" && a.IsIntegral() && b.IsIntegral()) {
    // In 113 bits, so that integers beyond 2^53 are not rounded before the division.
    const __float128 quotient =
        static_cast<__float128>(a.AsInt()) / static_cast<__float128>(b.AsInt());
    return Value::Float(static_cast<double>(quotient));
  }
  if (op == "/") return Value::Float(a.AsDouble() / b.AsDouble());
  if (a.IsIntegral() && b.IsIntegral()) {
    const Int x = a.AsInt();
    const Int y = b.AsInt();
    if (y == -1) {
      if (op == "%") return Value::Integer(0);
      Int negated = 0;
      return Value::Integer(Checked(__builtin_sub_overflow(Int{0}, x, &negated), negated));
    }
    const bool adjust = x % y != 0 && ((x % y < 0) != (y < 0));
    if (op == "%") return Value::Integer(adjust ? x % y + y : x % y);
    return Value::Integer(x / y - (adjust ? 1 : 0));
  }
  const double x = a.AsDouble();
  const double y = b.AsDouble();
  double rest = std::fmod(x, y);
  if (rest != 0 && ((y < 0) != (rest < 0))) rest += y;
  if (op == "%") return Value::Float(rest == 0 ? std::copysign(0.0, y) : rest);
  const double whole = (x - rest) / y;
  return Value::Float(whole == 0 ? std::copysign(0.0, x / y) : std::floor(whole + 0.5));
}

Value Repeat(const Value& sequence, Int count) {
  if (count < 0) count = 0;
  if (sequence.IsString()) {
    const std::string& s = sequence.Str();
    if (s.empty()) return sequence;
    CheckTextSize(count > Int{kMaxTextBytes} ? kMaxTextBytes + 1
                                             : static_cast<uint64_t>(count) * s.size());
    std::string out;
    out.reserve(s.size() * static_cast<size_t>(count));
    for (Int i = 0; i < count; ++i) out += s;
    return Value::String(std::move(out), sequence.IsMarkup());
  }
  const auto& items = sequence.AsList().items;
  std::vector<Value> out;
  if (items.empty()) count = 0;
  for (Int i = 0; i < count; ++i) {
    Charge(items.size() + 1);
    out.insert(out.end(), items.begin(), items.end());
  }
  return Value::MakeList(std::move(out), sequence.AsList().type);
}

bool IsConcatenable(const Value& v) {
  return v.Is(Kind::kList) &&
         (v.AsList().type == ListType::kList || v.AsList().type == ListType::kTuple);
}

Value Add(const Value& a, const Value& b) {
  if (a.IsString() && b.IsString()) {
    CheckTextSize(a.Str().size() + b.Str().size());
    if (a.IsMarkup() == b.IsMarkup()) return Value::String(a.Str() + b.Str(), a.IsMarkup());
    if (a.IsMarkup()) return Value::String(a.Str() + EscapeHtml(b.Str()), true);
    return Value::String(EscapeHtml(a.Str()) + b.Str(), true);
  }
  if (a.IsString()) {
    Fail(std::string("can only concatenate str (not \"") + TypeName(b) + "\") to str");
  }
  if (IsConcatenable(a) && IsConcatenable(b) && a.AsList().type == b.AsList().type) {
    std::vector<Value> items = a.AsList().items;
    items.insert(items.end(), b.AsList().items.begin(), b.AsList().items.end());
    return Value::MakeList(std::move(items), a.AsList().type);
  }
  Unsupported("+", a, b);
}

}  // namespace

Value BinaryOp(std::string_view op, const Value& a, const Value& b) {
  RequireDefined(a);
  RequireDefined(b);
  if (op == "%" && a.IsString()) {
    Value out = FormatPercent(a.Str(), b);
    return a.IsMarkup() ? Value::String(out.Str(), true) : out;
  }
  if (op == "*") {
    if ((a.IsString() || IsConcatenable(a)) && b.IsIntegral()) return Repeat(a, b.AsInt());
    if ((b.IsString() || IsConcatenable(b)) && a.IsIntegral()) return Repeat(b, a.AsInt());
  }
  if (!a.IsNumber() || !b.IsNumber()) {
    if (op == "+") return Add(a, b);
    Unsupported(op, a, b);
  }
  if (op == "**") return Power(a, b);
  if (op == "/" || op == "//" || op == "%") return Divide(op, a, b);
  if (a.IsIntegral() && b.IsIntegral()) {
    Int out = 0;
    const bool overflow = op == "+"   ? __builtin_add_overflow(a.AsInt(), b.AsInt(), &out)
                          : op == "-" ? __builtin_sub_overflow(a.AsInt(), b.AsInt(), &out)
                                      : __builtin_mul_overflow(a.AsInt(), b.AsInt(), &out);
    return Value::Integer(Checked(overflow, out));
  }
  const double x = a.AsDouble();
  const double y = b.AsDouble();
  return Value::Float(op == "+" ? x + y : op == "-" ? x - y : x * y);
}

Value UnaryOp(std::string_view op, const Value& v) {
  RequireDefined(v);
  if (!v.IsNumber()) {
    Fail("bad operand type for unary " + std::string(op) + ": '" + TypeName(v) + "'");
  }
  if (v.Is(Kind::kFloat)) return Value::Float(op == "-" ? -v.AsDouble() : v.AsDouble());
  Int out = v.AsInt();
  if (op == "-") out = Checked(__builtin_sub_overflow(Int{0}, v.AsInt(), &out), out);
  return Value::Integer(out);
}

bool Contains(const Value& container, const Value& item) {
  if (container.IsString()) {
    RequireDefined(item);
    if (!item.IsString()) {
      Fail(std::string("'in <string>' requires string as left operand, not ") + TypeName(item));
    }
    Charge(container.Str().size() / 16);
    return container.Str().find(item.Str()) != std::string::npos;
  }
  if (container.Is(Kind::kDict)) return DictFind(container.AsDict(), item) != nullptr;
  const Items items = Iterate(container);
  return std::any_of(items->begin(), items->end(),
                     [&](const Value& other) { return Equal(other, item); });
}

Items Iterate(const Value& v) {
  if (v.Is(Kind::kList)) {
    auto list = v.SharedList();
    return Items(std::shared_ptr<const std::vector<Value>>(list, &list->items));
  }
  auto items = std::make_shared<std::vector<Value>>();
  if (v.Is(Kind::kDict)) {
    Charge(v.AsDict().items.size());
    for (const auto& item : v.AsDict().items) items->push_back(item.first);
  } else if (v.IsString()) {
    for (size_t i = 0; i < v.Str().size();) {
      std::string c;
      AppendUtf8(NextCodePoint(v.Str(), &i), &c);
      items->push_back(Value::String(std::move(c)));
    }
  } else if (v.Is(Kind::kIterator)) {
    if (!std::exchange(v.AsIterator().used, true)) *items = std::move(v.AsIterator().items);
  } else if (!v.IsUndefined()) {
    Fail(std::string("'") + TypeName(v) + "' object is not iterable");
  }
  return Items(std::move(items));
}

Int Length(const Value& v) {
  if (v.IsString()) {
    Charge(v.Str().size() / 16);
    return CountCodePoints(v.Str());
  }
  if (v.Is(Kind::kList)) return static_cast<Int>(v.AsList().items.size());
  if (v.Is(Kind::kDict)) return static_cast<Int>(v.AsDict().items.size());
  if (v.IsUndefined()) return 0;
  Fail(std::string("object of type '") + TypeName(v) + "' has no len()");
}

namespace {

std::string OwnerName(const Value& v) {
  if (v.IsNone()) return "'None'";
  return "'" + std::string(TypeName(v)) + " object'";
}

Value Missing(const Value& v, const Value& key) {
  if (key.IsString())
    return Value::Undefined(OwnerName(v) + " has no attribute '" + key.Str() + "'");
  std::string name;
  switch (key.kind()) {
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBool:
    case Kind::kNone:
      name = Repr(key);
      break;
    default:
      name = std::string("of type ") + TypeName(key);
  }
  return Value::Undefined(std::string(TypeName(v)) + " object has no element " + name);
}

// The value at v[key], or null.
bool Subscript(const Value& v, const Value& key, Value* out) {
  if (v.Is(Kind::kDict)) {
    const bool hashable =
        !key.Is(Kind::kDict) && !(key.Is(Kind::kList) && key.AsList().type != ListType::kTuple);
    const Value* found = hashable ? DictFind(v.AsDict(), key) : nullptr;
    if (found != nullptr) *out = *found;
    return found != nullptr;
  }
  if (!key.IsIntegral()) return false;
  Int index = key.AsInt();
  if (v.Is(Kind::kList) && v.AsList().type != ListType::kView) {
    const auto& items = v.AsList().items;
    if (index < 0) index += static_cast<Int>(items.size());
    if (index < 0 || index >= static_cast<Int>(items.size())) return false;
    *out = items[static_cast<size_t>(index)];
    return true;
  }
  if (v.IsString()) {
    const Int length = Length(v);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return false;
    *out = GetSlice(v, Value::Integer(index), Value::Integer(index + 1), Value::None());
    return true;
  }
  return false;
}

}  // namespace

Value GetItem(const Value& v, const Value& key) {
  RequireDefined(v);
  Value out;
  if (Subscript(v, key, &out)) return out;
  if (key.IsString() && FindAttribute(v, key.Str(), &out)) return out;
  return Missing(v, key);
}

Value GetAttribute(const Value& v, const std::string& name) {
  RequireDefined(v);
  Value out;
  if (FindAttribute(v, name, &out)) return out;
  const Value key = Value::String(name);
  if (Subscript(v, key, &out)) return out;
  return Missing(v, key);
}

Value GetSlice(const Value& v, const Value& start, const Value& stop, const Value& step) {
  RequireDefined(v);
  if (!v.IsString() && !(v.Is(Kind::kList) && v.AsList().type != ListType::kView)) {
    Fail(std::string("'") + TypeName(v) + "' object has no slices");
  }
  std::vector<char32_t> points;
  if (v.IsString()) {
    Charge(v.Str().size() / 16);
    points = ToCodePoints(v.Str());
  }
  const Int length =
      v.IsString() ? static_cast<Int>(points.size()) : static_cast<Int>(v.AsList().items.size());
  const Int by = step.IsNone() ? Int{1} : RequireInt(step, "the step of a slice");
  if (by == 0) Fail("slice step cannot be zero");
  const Int low = by > 0 ? 0 : -1;
  const Int high = by > 0 ? length : length - 1;
  const auto bound = [&](const Value& b, Int otherwise) {
    if (b.IsNone()) return otherwise;
    Int i = RequireInt(b, "a bound of a slice");
    if (i < 0) i = i < -length ? Int{-1} : i + length;
    return std::clamp(i, low, high);
  };
  const Int from = bound(start, by > 0 ? low : high);
  const Int to = bound(stop, by > 0 ? high : low);
  std::vector<char32_t> taken;
  std::vector<Value> items;
  // A step beyond the length takes one element; the sum below cannot overflow then.
  const Int stride = std::clamp(by, -length - 1, length + 1);
  for (Int i = from; by > 0 ? i < to : i > to; i += stride) {
    if (v.IsString()) {
      taken.push_back(points[static_cast<size_t>(i)]);
    } else {
      items.push_back(v.AsList().items[static_cast<size_t>(i)]);
    }
  }
  if (v.IsString()) return Value::String(FromCodePoints(taken), v.IsMarkup());
  const ListType type = v.AsList().type;
  return Value::MakeList(std::move(items), type == ListType::kTuple ? type : ListType::kList);
}

Value GetPath(const Value& v, const Value& path) {
  if (path.IsIntegral()) return GetItem(v, path);
  const std::string& text = RequireString(path, "attribute");
  Value at = v;
  size_t start = 0;
  while (true) {
    const size_t dot = text.find('.', start);
    const std::string part = text.substr(start, dot - start);
    const bool digits = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    at = GetItem(at, digits ? Value::Integer(std::stol(part)) : Value::String(part));
    if (dot == std::string::npos) return at;
    start = dot + 1;
  }
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Int RequireInt(const Value& v, std::string_view what) {
  RequireDefined(v);
  if (!v.IsIntegral()) {
    Fail(std::string(what) + " must be an integer, not '" + TypeName(v) + "'");
  }
  return v.AsInt();
}

const std::string& RequireString(const Value& v, std::string_view what) {
  RequireDefined(v);
  if (!v.IsString()) Fail(std::string(what) + " must be str, not '" + TypeName(v) + "'");
  return v.Str();
}

}  // namespace titan::text::jinja
