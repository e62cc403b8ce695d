// SPDX-License-Identifier: Apache-2.0
//
// How two sets of weights differ, tensor by tensor, and what people and programs see of it. Values;
// the functions are pure and may be called from any thread.
#ifndef TITAN_CLIENTS_CLI_WEIGHTS_DIFFERENCE_H_
#define TITAN_CLIENTS_CLI_WEIGHTS_DIFFERENCE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace titan::cli {

struct TensorHead {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;  // "f32", "bf16"

  int64_t num_elements() const;
};

// Of the elements of two tensors of one shape. Elements are equal when their bits are; a difference
// that is not finite is counted and left out of the figures.
struct ValueDifference {
  uint64_t num_elements = 0;
  uint64_t num_differing = 0;
  uint64_t num_not_finite = 0;
  double max_abs = 0;
  double sum_of_squares = 0;

  // The next elements of both, widened to f32. The order decides the last bits of sum_of_squares.
  // REQUIRES: a.size() == b.size().
  void Add(std::span<const float> a, std::span<const float> b);
  // Over all elements.
  double rms() const;
};

struct TensorDifference {
  std::optional<TensorHead> a, b;  // nullopt: there is none there
  ValueDifference values;          // when the shapes are equal

  const std::string& name() const { return a.has_value() ? a->name : b->name; }
  // "none", "values", "dtype" (values are compared all the same), "shape", "only_in_a",
  // "only_in_b".
  std::string kind() const;
};

struct WeightsDifference {
  std::string a, b;  // what is compared, for people
  std::vector<TensorDifference> tensors;

  bool equal() const;
};

// The tensors that differ, and a line that counts.
std::string FormatDifference(const WeightsDifference& difference);
// All tensors; ends with a newline.
std::string DifferenceJson(const WeightsDifference& difference);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_WEIGHTS_DIFFERENCE_H_
