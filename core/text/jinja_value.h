// SPDX-License-Identifier: Apache-2.0
//
// Value: what an expression of a chat template evaluates to. Cheap to copy (strings and containers
// are shared and immutable); dicts keep the order of insertion. Not thread-safe to mutate, safe to
// share. Failures inside the interpreter travel as the private exception Raise and become a Status
// in ChatTemplate; they never leave core/text.
#ifndef TITAN_CORE_TEXT_JINJA_VALUE_H_
#define TITAN_CORE_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/status.h"

namespace titan::text::jinja {

// 128 bits, overflow is an error: wide enough for every number a template computes with.
using Int = __int128;

// The template or its input is at fault (kInvalidArgument) or a limit is reached
// (kResourceExhausted).
struct Raise {
  StatusCode code;
  std::string message;
};
[[noreturn]] void Fail(std::string message);       // kInvalidArgument
[[noreturn]] void FailLimit(std::string message);  // kResourceExhausted

// The longest text one operation may make.
inline constexpr uint64_t kMaxTextBytes = uint64_t{16} << 20;

// Work of one render, counted in steps: one for a node, an element or 16 bytes of text. While a
// WorkBudget lives, Charge on its thread counts against it and fails (kResourceExhausted) at its
// end.
class WorkBudget {
 public:
  explicit WorkBudget(uint64_t steps);
  ~WorkBudget();
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;

 private:
  friend void Charge(uint64_t steps);
  uint64_t left_;
  uint64_t total_;
  WorkBudget* outer_;
};
void Charge(uint64_t steps);
// Fails when a text of that many bytes may not be made; call it before reserving the memory.
void CheckTextSize(uint64_t bytes);

enum class Kind {
  kUndefined,  // missing name, key or attribute; prints as nothing, most uses fail with its message
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,  // also tuples, ranges and dict views: see ListType
  kDict,
  kIterator,  // what lazy filters return: may be walked once
  kNamespace,
  kMacro,
  kLoop,
  kFunction,  // a global function, or a method bound to a value
};

enum class ListType { kList, kTuple, kRange, kView };

class Value;
struct List;
struct Dict;
struct Iterator;
struct Namespace;
struct Macro;
struct Loop;
struct Function;

class Value {
 public:
  Value() = default;  // undefined without a message
  static Value Undefined(std::string message);
  static Value None();
  static Value Bool(bool b);
  static Value Integer(Int i);
  static Value Float(double d);
  static Value String(std::string s, bool markup = false);
  // Fails when containers nest deeper than kMaxValueDepth.
  static Value MakeList(std::vector<Value> items, ListType type = ListType::kList,
                        std::string text = "");
  static Value MakeDict(std::vector<std::pair<Value, Value>> items);  // keys: see DictSet
  static Value MakeIterator(std::vector<Value> items);
  static Value MakeNamespace(Namespace* ns);
  static Value MakeMacro(const Macro* macro);
  static Value MakeLoop(std::shared_ptr<Loop> loop);
  static Value MakeFunction(std::string name);
  static Value MakeMethod(Value self, std::string name);

  Kind kind() const { return kind_; }
  bool Is(Kind k) const { return kind_ == k; }
  bool IsUndefined() const { return kind_ == Kind::kUndefined; }
  bool IsNone() const { return kind_ == Kind::kNone; }
  bool IsString() const { return kind_ == Kind::kString; }
  bool IsNumber() const {
    return kind_ == Kind::kInt || kind_ == Kind::kFloat || kind_ == Kind::kBool;
  }
  bool IsIntegral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  // Escaped text: joining it with plain text by + escapes the plain text.
  bool IsMarkup() const { return kind_ == Kind::kString && flag_; }

  // REQUIRES the kind.
  bool AsBool() const { return flag_; }
  Int AsInt() const { return kind_ == Kind::kBool ? Int{flag_} : int_; }  // ints and bools
  double AsDouble() const;                                                // numbers
  const std::string& Str() const { return *static_cast<const std::string*>(object_.get()); }
  const List& AsList() const;
  const Dict& AsDict() const;
  Iterator& AsIterator() const;
  Namespace& AsNamespace() const;
  const Macro& AsMacro() const;
  Loop& AsLoop() const;
  const Function& AsFunction() const;
  // Why it is undefined.
  std::string UndefinedMessage() const;
  const void* Identity() const { return raw_ != nullptr ? raw_ : object_.get(); }
  std::shared_ptr<const List> SharedList() const;

 private:
  Kind kind_ = Kind::kUndefined;
  bool flag_ = false;  // the bool, or markup
  union {
    Int int_ = 0;
    double double_;
  };
  std::shared_ptr<void> object_;
  void* raw_ = nullptr;  // namespaces and macros belong to the render that made them
};

struct List {
  std::vector<Value> items;
  ListType type = ListType::kList;
  std::string text;  // kRange: how it prints; kView: its name, for example dict_items
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
};

struct Iterator {
  std::vector<Value> items;
  bool used = false;
  int depth = 1;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Function {
  Value self;  // undefined for global functions
  bool bound = false;
  std::string name;
  int depth = 0;
};

inline constexpr int kMaxValueDepth = 128;

// Fails for loop variables, which must not outlive their loop in a container.
void CheckStorable(const Value& v);
const char* TypeName(const Value& v);  // Python's name, for messages
bool Truthy(const Value& v);
// Python's ==; never fails.
bool Equal(const Value& a, const Value& b);
// -1, 0, 1; fails for kinds without an order. op names the operator in the message.
int Compare(const Value& a, const Value& b, const char* op);
// Fails for what cannot be a key: lists and dicts.
void CheckHashable(const Value& key);
// null when absent; fails for unhashable keys.
const Value* DictFind(const Dict& dict, const Value& key);
const Value* DictFind(const Dict& dict, std::string_view key);
// Replaces or appends.
void DictSet(std::vector<std::pair<Value, Value>>* items, Value key, Value value);

std::string IntToString(Int i);
std::string FloatRepr(double d);
std::string Repr(const Value& v);    // as inside a printed list
std::string ToText(const Value& v);  // as {{ v }} prints it

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string ToJson(const Value& v, const JsonStyle& style);

// Fails for nesting over kMaxValueDepth, strings that are not UTF-8, and binary values; `path`
// starts the name of the place in the message.
Value FromJson(const nlohmann::ordered_json& json, const std::string& path);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_VALUE_H_
