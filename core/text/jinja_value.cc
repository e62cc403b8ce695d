// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_value.h"

#include <algorithm>
#include <cmath>

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

}  // namespace titan::text::jinja
