// SPDX-License-Identifier: Apache-2.0
// The filters that walk, order and group sequences.
#include <algorithm>

#include "core/text/jinja_filters.h"
#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {
namespace {

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

Args WithoutFirst(const Args& args, size_t count) {
  Args rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(count),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

}  // namespace

Value SortFilter(const FilterCall& c) {
  const Bound b = c.Bind({"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : Iterate(c.input)) {
    keyed.emplace_back(SortKey(item, b[2], b.Flag(1)), item);
  }
  return Value::MakeList(Sorted(std::move(keyed), b.Flag(0)));
}

Value DictSortFilter(const FilterCall& c) {
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

Value UniqueFilter(const FilterCall& c) {
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

Value MinMaxFilter(const FilterCall& c, int wanted) {
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

Value SumFilter(const FilterCall& c) {
  const Bound b = c.Bind({"attribute", "start"}, 0);
  Value total = b.Has(1) ? b[1] : Value::Integer(0);
  if (total.IsString()) Fail("sum() can't sum strings; use the filter join");
  for (const Value& item : Iterate(c.input)) {
    total = BinaryOp("+", total, Attribute(item, b[0], Value()));
  }
  return total;
}

Value GroupByFilter(const FilterCall& c) {
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

Value MapFilter(const FilterCall& c) {
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

Value SelectFilter(const FilterCall& c, bool keep, bool by_attribute) {
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

Value JoinFilter(const FilterCall& c) {
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

Value FirstFilter(const FilterCall& c) {
  c.Bind({}, 0);
  const Items items = Iterate(c.input);
  return items->empty() ? Value::Undefined("No first item, sequence was empty.") : items->front();
}

Value LastFilter(const FilterCall& c) {
  c.Bind({}, 0);
  if (c.input.Is(Kind::kIterator)) Fail("'generator' object is not reversible");
  const Items items = Iterate(c.input);
  return items->empty() ? Value::Undefined("No last item, sequence was empty.") : items->back();
}

Value ReverseFilter(const FilterCall& c) {
  c.Bind({}, 0);
  if (c.input.IsString()) {
    return GetSlice(c.input, Value::None(), Value::None(), Value::Integer(-1));
  }
  std::vector<Value> items = *Iterate(c.input);
  std::reverse(items.begin(), items.end());
  return c.input.Is(Kind::kIterator) ? Value::MakeList(std::move(items))
                                     : Value::MakeIterator(std::move(items));
}

Value BatchFilter(const FilterCall& c) {
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

Value SliceFilter(const FilterCall& c) {
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

Value ItemsFilter(const FilterCall& c) {
  c.Bind({}, 0);
  if (c.input.IsUndefined()) return Value::MakeIterator({});
  if (!c.input.Is(Kind::kDict)) Fail("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, value] : c.input.AsDict().items) {
    out.push_back(Value::MakeList({key, value}, ListType::kTuple));
  }
  return Value::MakeIterator(std::move(out));
}

}  // namespace titan::text::jinja
