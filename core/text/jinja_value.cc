// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {

void Fail(std::string message) { throw Raise{StatusCode::kInvalidArgument, std::move(message)}; }
void FailLimit(std::string message) {
  throw Raise{StatusCode::kResourceExhausted, std::move(message)};
}

namespace {
thread_local WorkBudget* current_budget = nullptr;
}  // namespace

WorkBudget::WorkBudget(uint64_t steps) : left_(steps), total_(steps), outer_(current_budget) {
  current_budget = this;
}
WorkBudget::~WorkBudget() { current_budget = outer_; }

void Charge(uint64_t steps) {
  WorkBudget* budget = current_budget;
  if (budget == nullptr) return;
  if (steps > budget->left_) {
    budget->left_ = 0;
    FailLimit("the template takes more than " + std::to_string(budget->total_) + " steps");
  }
  budget->left_ -= steps;
}

void CheckTextSize(uint64_t bytes) {
  if (bytes > kMaxTextBytes) {
    FailLimit("a text of " + std::to_string(bytes) + " bytes is longer than the limit of " +
              std::to_string(kMaxTextBytes));
  }
}

namespace {

// Levels of values that hold values. Bounded, so that walking and freeing them cannot exhaust the
// stack.
int DepthOf(const Value& v) {
  switch (v.kind()) {
    case Kind::kList:
      return v.AsList().depth;
    case Kind::kDict:
      return v.AsDict().depth;
    case Kind::kIterator:
      return v.AsIterator().depth;
    case Kind::kFunction:
      return v.AsFunction().depth;
    default:
      return 0;
  }
}

int CheckedDepth(int inner) {
  if (inner >= kMaxValueDepth) {
    FailLimit("lists and dicts nest deeper than " + std::to_string(kMaxValueDepth));
  }
  return inner + 1;
}

int DepthOver(const std::vector<Value>& items) {
  Charge(items.size());
  int depth = 0;
  for (const Value& item : items) {
    CheckStorable(item);
    depth = std::max(depth, DepthOf(item));
  }
  return CheckedDepth(depth);
}

}  // namespace

void CheckStorable(const Value& v) {
  const bool loop_method = v.Is(Kind::kFunction) && v.AsFunction().self.Is(Kind::kLoop);
  if (v.Is(Kind::kLoop) || loop_method) {
    Fail("a loop variable cannot be kept in a list, dict or namespace; keep one of its values");
  }
}

Value Value::Undefined(std::string message) {
  Value v;
  v.object_ = std::make_shared<std::string>(std::move(message));
  return v;
}
Value Value::None() {
  Value v;
  v.kind_ = Kind::kNone;
  return v;
}
Value Value::Bool(bool b) {
  Value v;
  v.kind_ = Kind::kBool;
  v.flag_ = b;
  return v;
}
Value Value::Integer(Int i) {
  Value v;
  v.kind_ = Kind::kInt;
  v.int_ = i;
  return v;
}
Value Value::Float(double d) {
  Value v;
  v.kind_ = Kind::kFloat;
  v.double_ = d;
  return v;
}
Value Value::String(std::string s, bool markup) {
  CheckTextSize(s.size());
  Charge(1 + s.size() / 16);
  Value v;
  v.kind_ = Kind::kString;
  v.flag_ = markup;
  v.object_ = std::make_shared<std::string>(std::move(s));
  return v;
}
Value Value::MakeList(std::vector<Value> items, ListType type, std::string text) {
  auto list = std::make_shared<List>();
  list->depth = DepthOver(items);
  list->items = std::move(items);
  list->type = type;
  list->text = std::move(text);
  Value v;
  v.kind_ = Kind::kList;
  v.object_ = std::move(list);
  return v;
}
Value Value::MakeDict(std::vector<std::pair<Value, Value>> items) {
  Charge(items.size());
  int depth = 0;
  for (const auto& [key, value] : items) {
    CheckStorable(key);
    CheckStorable(value);
    depth = std::max({depth, DepthOf(key), DepthOf(value)});
  }
  auto dict = std::make_shared<Dict>();
  dict->depth = CheckedDepth(depth);
  dict->items = std::move(items);
  Value v;
  v.kind_ = Kind::kDict;
  v.object_ = std::move(dict);
  return v;
}
Value Value::MakeIterator(std::vector<Value> items) {
  auto iterator = std::make_shared<Iterator>();
  iterator->depth = DepthOver(items);
  iterator->items = std::move(items);
  Value v;
  v.kind_ = Kind::kIterator;
  v.object_ = std::move(iterator);
  return v;
}
Value Value::MakeNamespace(Namespace* ns) {
  Value v;
  v.kind_ = Kind::kNamespace;
  v.raw_ = ns;
  return v;
}
Value Value::MakeMacro(const Macro* macro) {
  Value v;
  v.kind_ = Kind::kMacro;
  v.raw_ = const_cast<Macro*>(macro);
  return v;
}
Value Value::MakeLoop(std::shared_ptr<Loop> loop) {
  Value v;
  v.kind_ = Kind::kLoop;
  v.object_ = std::move(loop);
  return v;
}
Value Value::MakeFunction(std::string name) {
  auto function = std::make_shared<Function>();
  function->name = std::move(name);
  Value v;
  v.kind_ = Kind::kFunction;
  v.object_ = std::move(function);
  return v;
}
Value Value::MakeMethod(Value self, std::string name) {
  Value v = MakeFunction(std::move(name));
  auto* function = static_cast<Function*>(v.object_.get());
  function->depth = CheckedDepth(DepthOf(self));
  function->self = std::move(self);
  function->bound = true;
  return v;
}

double Value::AsDouble() const {
  return kind_ == Kind::kFloat ? double_ : static_cast<double>(AsInt());
}
const List& Value::AsList() const { return *static_cast<const List*>(object_.get()); }
const Dict& Value::AsDict() const { return *static_cast<const Dict*>(object_.get()); }
Iterator& Value::AsIterator() const { return *static_cast<Iterator*>(object_.get()); }
Namespace& Value::AsNamespace() const { return *static_cast<Namespace*>(raw_); }
const Macro& Value::AsMacro() const { return *static_cast<const Macro*>(raw_); }
Loop& Value::AsLoop() const { return *static_cast<Loop*>(object_.get()); }
const Function& Value::AsFunction() const { return *static_cast<const Function*>(object_.get()); }
std::shared_ptr<const List> Value::SharedList() const {
  return std::static_pointer_cast<const List>(std::shared_ptr<const void>(object_));
}
std::string Value::UndefinedMessage() const {
  return object_ != nullptr ? Str() : std::string("the value is undefined");
}

const char* TypeName(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return v.IsMarkup() ? "Markup" : "str";
    case Kind::kList:
      switch (v.AsList().type) {
        case ListType::kList:
          return "list";
        case ListType::kTuple:
          return "tuple";
        case ListType::kRange:
          return "range";
        case ListType::kView:
          return v.AsList().text.c_str();
      }
      return "list";
    case Kind::kDict:
      return "dict";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

bool Truthy(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return v.AsBool();
    case Kind::kInt:
      return v.AsInt() != 0;
    case Kind::kFloat:
      return v.AsDouble() != 0;
    case Kind::kString:
      return !v.Str().empty();
    case Kind::kList:
      return !v.AsList().items.empty();
    case Kind::kDict:
      return !v.AsDict().items.empty();
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kFunction:
      return true;
  }
  return true;
}

namespace {

// Exact order of two numbers; nan gives 2.
int CompareNumbers(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral()) {
    return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt() ? 1 : 0;
  }
  const double x = a.AsDouble();
  const double y = b.AsDouble();
  if (std::isnan(x) || std::isnan(y)) return 2;
  if (a.Is(Kind::kFloat) != b.Is(Kind::kFloat)) {
    // One is an integer: compare without rounding it where the other is in its range.
    const double f = a.Is(Kind::kFloat) ? x : y;
    const Int i = a.Is(Kind::kFloat) ? b.AsInt() : a.AsInt();
    int order;  // of i against f
    if (std::fabs(f) < 1e37) {
      const auto whole = static_cast<Int>(f);
      const double rest = f - static_cast<double>(whole);
      order = i < whole ? -1 : i > whole ? 1 : rest > 0 ? -1 : rest < 0 ? 1 : 0;
    } else {
      order = f > 0 ? -1 : 1;
    }
    return a.Is(Kind::kFloat) ? -order : order;
  }
  return x < y ? -1 : x > y ? 1 : 0;
}

bool SameSequenceType(const Value& a, const Value& b) { return a.AsList().type == b.AsList().type; }

}  // namespace

bool Equal(const Value& a, const Value& b) {
  Charge(1);
  if (a.IsNumber() && b.IsNumber()) return CompareNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.Str() == b.Str();
    case Kind::kList: {
      const auto& x = a.AsList().items;
      const auto& y = b.AsList().items;
      return SameSequenceType(a, b) && std::equal(x.begin(), x.end(), y.begin(), y.end(), Equal);
    }
    case Kind::kDict: {
      const Dict& x = a.AsDict();
      const Dict& y = b.AsDict();
      if (x.items.size() != y.items.size()) return false;
      return std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
        const Value* other = DictFind(y, item.first);
        return other != nullptr && Equal(item.second, *other);
      });
    }
    default:
      return a.Identity() == b.Identity();
  }
}

int Compare(const Value& a, const Value& b, const char* op) {
  Charge(1);
  if (a.IsNumber() && b.IsNumber()) return CompareNumbers(a, b);
  if (a.IsUndefined()) Fail(a.UndefinedMessage());
  if (b.IsUndefined()) Fail(b.UndefinedMessage());
  if (a.IsString() && b.IsString()) {
    const int order = a.Str().compare(b.Str());  // bytes of UTF-8 sort as code points do
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.Is(Kind::kList) && b.Is(Kind::kList) && SameSequenceType(a, b) &&
      (a.AsList().type == ListType::kList || a.AsList().type == ListType::kTuple)) {
    const auto& x = a.AsList().items;
    const auto& y = b.AsList().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(x[i], y[i])) return Compare(x[i], y[i], op);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  Fail(std::string("'") + op + "' not supported between instances of '" + TypeName(a) + "' and '" +
       TypeName(b) + "'");
}

void CheckHashable(const Value& key) {
  const bool list = key.Is(Kind::kList) && key.AsList().type != ListType::kTuple;
  if (key.Is(Kind::kDict) || list) {
    Fail(std::string("unhashable type: '") + TypeName(key) + "'");
  }
}

const Value* DictFind(const Dict& dict, const Value& key) {
  if (key.IsString()) return DictFind(dict, key.Str());
  CheckHashable(key);
  for (const auto& item : dict.items) {
    if (Equal(item.first, key)) return &item.second;
  }
  return nullptr;
}

const Value* DictFind(const Dict& dict, std::string_view key) {
  Charge(dict.items.size() / 8);
  for (const auto& item : dict.items) {
    if (item.first.IsString() && item.first.Str() == key) return &item.second;
  }
  return nullptr;
}

void DictSet(std::vector<std::pair<Value, Value>>* items, Value key, Value value) {
  CheckHashable(key);
  for (auto& item : *items) {
    if (Equal(item.first, key)) {
      item.second = std::move(value);
      return;
    }
  }
  items->emplace_back(std::move(key), std::move(value));
}

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
