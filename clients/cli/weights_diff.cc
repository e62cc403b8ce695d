// SPDX-License-Identifier: Apache-2.0
// weights diff.
#include <algorithm>
#include <iostream>
#include <map>
#include <vector>

#include "clients/cli/commands.h"
#include "clients/cli/weights_difference.h"
#include "clients/cli/weights_reader.h"

namespace titan::cli {
namespace {

constexpr int64_t kBlockElements = 1 << 18;  // of each side, at least kRowStep rows

StatusOr<ValueDifference> CompareValues(WeightsReader& a, size_t tensor_a, WeightsReader& b,
                                        size_t tensor_b) {
  const TensorHead& head = a.tensors()[tensor_a];
  ValueDifference values;
  const std::string blob = a.BlobOf(tensor_a);
  if (!blob.empty() && blob == b.BlobOf(tensor_b)) {
    values.num_elements = static_cast<uint64_t>(head.num_elements());
    return values;
  }
  const int64_t rows = RowsOf(head), columns = ColumnsOf(head);
  const int64_t block =
      std::max(kBlockElements / std::max<int64_t>(columns, 1) / kRowStep * kRowStep, kRowStep);
  std::vector<float> of_a, of_b;
  for (int64_t first = 0; first < rows; first += block) {
    const size_t elements = static_cast<size_t>(std::min(block, rows - first) * columns);
    of_a.resize(elements);
    of_b.resize(elements);
    TITAN_RETURN_IF_ERROR(a.Read(tensor_a, first, of_a));
    TITAN_RETURN_IF_ERROR(b.Read(tensor_b, first, of_b));
    values.Add(of_a, of_b);
  }
  TITAN_RETURN_IF_ERROR(a.Finish(tensor_a));
  TITAN_RETURN_IF_ERROR(b.Finish(tensor_b));
  return values;
}

// In the order of `a`; what only `b` has comes last.
StatusOr<WeightsDifference> Compare(WeightsReader& a, WeightsReader& b) {
  WeightsDifference difference{a.title(), b.title(), {}};
  std::map<std::string, size_t> of_b;
  for (size_t i = 0; i < b.tensors().size(); ++i) of_b[b.tensors()[i].name] = i;
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    TensorDifference tensor;
    tensor.a = a.tensors()[i];
    if (const auto found = of_b.find(tensor.a->name); found != of_b.end()) {
      tensor.b = b.tensors()[found->second];
      if (tensor.a->shape == tensor.b->shape) {
        TITAN_ASSIGN_OR_RETURN(tensor.values, CompareValues(a, i, b, found->second));
      }
      of_b.erase(found);
    }
    difference.tensors.push_back(std::move(tensor));
  }
  for (const TensorHead& head : b.tensors()) {
    if (of_b.contains(head.name)) difference.tensors.push_back({.a = {}, .b = head, .values = {}});
  }
  return difference;
}

// 1 says that the weights differ, so that a failure is 2, as with diff(1).
int Trouble(const Status& status) {
  const int code = Fail(status);
  return code == kExitFailed ? kExitUsage : code;
}

}  // namespace

int DiffWeights(const Common& common, const WeightsOptions& options) {
  const auto a = OpenWeights(common, options.name);
  if (!a.ok()) return Trouble(a.status());
  const auto b = OpenWeights(common, options.other);
  if (!b.ok()) return Trouble(b.status());
  const auto difference = Compare(**a, **b);
  if (!difference.ok()) return Trouble(difference.status());
  std::cout << (common.json ? DifferenceJson(*difference) : FormatDifference(*difference))
            << std::flush;
  return difference->equal() ? kExitOk : kExitFailed;
}

}  // namespace titan::cli
