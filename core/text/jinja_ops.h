// SPDX-License-Identifier: Apache-2.0
//
// What operators, subscripts and attributes do to values. Pure functions; failures are thrown as
// Raise with the words Python would use, so that authors of templates recognise them.
#ifndef TITAN_CORE_TEXT_JINJA_OPS_H_
#define TITAN_CORE_TEXT_JINJA_OPS_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/jinja_value.h"

namespace titan::text::jinja {

// Shared elements. `for (const Value& v : Iterate(x))` is safe; `: *Iterate(x)` would let them go.
class Items {
 public:
  Items() = default;
  explicit Items(std::shared_ptr<const std::vector<Value>> values) : values_(std::move(values)) {}
  auto begin() const { return values_->begin(); }
  auto end() const { return values_->end(); }
  const std::vector<Value>* operator->() const { return values_.get(); }
  const std::vector<Value>& operator*() const { return *values_; }

 private:
  std::shared_ptr<const std::vector<Value>> values_;
};

// op: + - * / // % **
Value BinaryOp(std::string_view op, const Value& a, const Value& b);
Value UnaryOp(std::string_view op, const Value& v);
bool Contains(const Value& container, const Value& item);
// What a loop over v walks: elements, keys, characters. Uses up an iterator.
Items Iterate(const Value& v);
Int Length(const Value& v);
// v[key], then v.key; undefined when neither exists.
Value GetItem(const Value& v, const Value& key);
// v.name, then v["name"]. Names starting with _ and methods that would change v are undefined.
Value GetAttribute(const Value& v, const std::string& name);
// Bounds and step are none or integers.
Value GetSlice(const Value& v, const Value& start, const Value& stop, const Value& step);
// Follows "a.b.0" from v.
Value GetPath(const Value& v, const Value& path);

std::string EscapeHtml(std::string_view text);
// An argument that must be an integer; `what` names it.
Int RequireInt(const Value& v, std::string_view what);
const std::string& RequireString(const Value& v, std::string_view what);

// text % argument, and text.format(...).
Value FormatPercent(const std::string& text, const Value& argument);
std::string FormatBraces(const std::string& text, const std::vector<Value>& positional,
                         const std::vector<std::pair<std::string, Value>>& named);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_OPS_H_
