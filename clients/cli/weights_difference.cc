// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/weights_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "clients/cluster/terminal.h"
#include "core/base/check.h"

namespace titan::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string ShapeOf(const TensorHead& head) {
  return head.shape.empty() ? "1" : fmt::format("{}", fmt::join(head.shape, " x "));
}

// Of both, when they are equal.
std::string Both(const std::string& a, const std::string& b) { return a == b ? a : a + " | " + b; }

Json HeadJson(const std::optional<TensorHead>& head) {
  if (!head.has_value()) return nullptr;
  return {{"shape", head->shape}, {"dtype", head->dtype}};
}

}  // namespace

int64_t TensorHead::num_elements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

void ValueDifference::Add(std::span<const float> a, std::span<const float> b) {
  TITAN_CHECK(a.size() == b.size());
  num_elements += a.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    ++num_differing;
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    if (!std::isfinite(difference)) {
      ++num_not_finite;
      continue;
    }
    max_abs = std::max(max_abs, std::abs(difference));
    sum_of_squares += difference * difference;
  }
}

double ValueDifference::rms() const {
  return num_elements == 0 ? 0 : std::sqrt(sum_of_squares / static_cast<double>(num_elements));
}

std::string TensorDifference::kind() const {
  if (!b.has_value()) return "only_in_a";
  if (!a.has_value()) return "only_in_b";
  if (a->shape != b->shape) return "shape";
  if (a->dtype != b->dtype) return "dtype";
  return values.num_differing == 0 ? "none" : "values";
}

bool WeightsDifference::equal() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorDifference& tensor) { return tensor.kind() == "none"; });
}

std::string FormatDifference(const WeightsDifference& difference) {
  const std::string a = cluster::PrintableLine(difference.a);
  const std::string b = cluster::PrintableLine(difference.b);
  const size_t num = difference.tensors.size();
  if (difference.equal()) {
    uint64_t elements = 0;
    for (const TensorDifference& tensor : difference.tensors) {
      elements += tensor.values.num_elements;
    }
    return fmt::format("{} and {} are equal: {} elements in {} tensors\n", a, b, elements, num);
  }
  std::vector<std::vector<std::string>> rows = {
      {"TENSOR", "DIFFERS IN", "SHAPE", "TYPE", "ELEMENTS", "MAX ABS", "RMS"}};
  // What a row counts under, in the order in which the last line says it.
  std::pair<const char*, const char*> kinds[] = {{"values", "in values"},
                                                 {"dtype", "in type"},
                                                 {"shape", "in shape"},
                                                 {"only_in_a", "only in the first"},
                                                 {"only_in_b", "only in the second"}};
  size_t counts[std::size(kinds)] = {};
  for (const TensorDifference& tensor : difference.tensors) {
    const std::string kind = tensor.kind();
    if (kind == "none") continue;
    for (size_t i = 0; i < std::size(kinds); ++i) counts[i] += kind == kinds[i].first;
    if (kind.starts_with("only")) {
      const TensorHead& head = tensor.a.has_value() ? *tensor.a : *tensor.b;
      rows.push_back({head.name, tensor.a.has_value() ? "only in the first" : "only in the second",
                      ShapeOf(head), head.dtype, "", "", ""});
      continue;
    }
    std::vector<std::string> row = {tensor.name(), kind == "dtype" ? "type" : kind,
                                    Both(ShapeOf(*tensor.a), ShapeOf(*tensor.b)),
                                    Both(tensor.a->dtype, tensor.b->dtype)};
    if (kind == "shape") {
      row.resize(7);
    } else {
      const ValueDifference& values = tensor.values;
      row.push_back(fmt::format("{} of {}", values.num_differing, values.num_elements));
      row.push_back(fmt::format("{:.3e}", values.max_abs));
      row.push_back(fmt::format("{:.3e}", values.rms()) +
                    (values.num_not_finite == 0
                         ? ""
                         : fmt::format(", {} not finite", values.num_not_finite)));
    }
    rows.push_back(std::move(row));
  }
  std::string text;
  for (size_t i = 0; i < std::size(kinds); ++i) {
    if (counts[i] > 0) text += fmt::format(", {} {}", counts[i], kinds[i].second);
  }
  return cluster::FormatTable(rows) +
         fmt::format("\n{} and {}: {} of {} tensors differ{}\n", a, b, rows.size() - 1, num, text);
}

std::string DifferenceJson(const WeightsDifference& difference) {
  Json tensors = Json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    Json row = {{"name", tensor.name()},
                {"difference", tensor.kind()},
                {"a", HeadJson(tensor.a)},
                {"b", HeadJson(tensor.b)}};
    if (tensor.a.has_value() && tensor.b.has_value() && tensor.a->shape == tensor.b->shape) {
      row["elements"] = tensor.values.num_elements;
      row["elements_differing"] = tensor.values.num_differing;
      row["elements_not_finite"] = tensor.values.num_not_finite;
      row["max_abs"] = tensor.values.max_abs;
      row["rms"] = tensor.values.rms();
    }
    tensors.push_back(std::move(row));
  }
  const Json out = {{"a", difference.a},
                    {"b", difference.b},
                    {"equal", difference.equal()},
                    {"tensors", std::move(tensors)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace titan::cli
