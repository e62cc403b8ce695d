// SPDX-License-Identifier: Apache-2.0
//
// Between the files that implement filters; others call CallFilter (jinja_builtins.h).
#ifndef TITAN_CORE_TEXT_JINJA_FILTERS_H_
#define TITAN_CORE_TEXT_JINJA_FILTERS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "core/text/jinja_builtins.h"

namespace titan::text::jinja {

// One use of a filter; the references live as long as the call.
struct FilterCall {
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

Value SortFilter(const FilterCall& c);
Value DictSortFilter(const FilterCall& c);
Value UniqueFilter(const FilterCall& c);
Value MinMaxFilter(const FilterCall& c, int wanted);
Value SumFilter(const FilterCall& c);
Value GroupByFilter(const FilterCall& c);
Value MapFilter(const FilterCall& c);
Value SelectFilter(const FilterCall& c, bool keep, bool by_attribute);
Value JoinFilter(const FilterCall& c);
Value FirstFilter(const FilterCall& c);
Value LastFilter(const FilterCall& c);
Value ReverseFilter(const FilterCall& c);
Value BatchFilter(const FilterCall& c);
Value SliceFilter(const FilterCall& c);
Value ItemsFilter(const FilterCall& c);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_FILTERS_H_
