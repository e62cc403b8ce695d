// SPDX-License-Identifier: Apache-2.0
//
// Filters, tests, methods and global functions of chat templates. What is not in these tables does
// not exist: a template can reach nothing outside its input, change nothing, and meets no
// randomness and no clock but the one the caller injects.
#ifndef TITAN_CORE_TEXT_JINJA_BUILTINS_H_
#define TITAN_CORE_TEXT_JINJA_BUILTINS_H_

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/jinja_value.h"

namespace titan::text::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// What builtins share during one render; owns the namespaces, which may refer to each other.
struct Runtime {
  std::optional<std::chrono::sys_seconds> now;
  std::vector<std::unique_ptr<Namespace>> namespaces;
  int filter_depth = 0;  // of filters called by name (map)
};

// Arguments by the names of a signature. Fails on unknown, doubled and surplus ones and when one of
// the first `required` is absent.
class Bound {
 public:
  Bound(std::string_view what, const Args& args, std::initializer_list<std::string_view> names,
        size_t required);
  bool Has(size_t i) const { return present_[i]; }
  const Value& operator[](size_t i) const { return values_[i]; }  // undefined when absent
  bool Flag(size_t i) const { return present_[i] && Truthy(values_[i]); }
  // The argument or, when it is absent or none, nothing.
  std::optional<Int> Integer(size_t i, std::string_view name) const;

 private:
  std::vector<Value> values_;
  std::vector<bool> present_;
};

bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
Value CallFilter(Runtime& runtime, const std::string& name, const Value& input, const Args& args);
bool CallTest(const std::string& name, const Value& v, const Args& args);

// A method or property of v, apart from its items. False when v has none of that name; names that
// would change v or start with _ give an undefined value that explains itself when it is used.
bool FindAttribute(const Value& v, const std::string& name, Value* out);
// REQUIRES: kFunction that is bound.
Value CallMethod(const Value& self, const std::string& name, const Args& args);

// range, dict, namespace, raise_exception, strftime_now
bool IsGlobalFunction(std::string_view name);
Value CallGlobal(Runtime& runtime, const std::string& name, const Args& args);

// Items of a loop variable (index, first, ...); defined with the interpreter.
bool FindLoopAttribute(const Value& loop, const std::string& name, Value* out);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_BUILTINS_H_
