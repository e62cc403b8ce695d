// SPDX-License-Identifier: Apache-2.0
//
// Cases of tests/golden/op_gradients (tools/golden/op_gradients.py says how they are made): drawing
// of the inputs, and the distance of a tensor from the float64 one. Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_OP_GRADIENTS_H_
#define TITAN_TESTS_SUPPORT_OP_GRADIENTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"
#include "core/kernels/units.h"
#include "tests/support/golden.h"

namespace titan::kernels::tests {

using Floats = std::vector<float>;

inline Floats Zeros(int64_t n) { return Floats(static_cast<size_t>(n), 0.0f); }

// The finisher of SplitMix64.
inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What comes out of one operation, by the names of the case.
using Tensors = std::map<std::string, Floats>;

class OpCase {
 public:
  explicit OpCase(const nlohmann::json& c) : case_(c) {}

  const nlohmann::json& json() const { return case_; }
  std::string name() const { return case_["name"]; }
  std::string op() const { return case_["op"]; }
  const nlohmann::json& config() const { return case_["config"]; }
  int64_t Int(const char* name) const { return config()[name].get<int64_t>(); }
  float Float(const char* name) const { return config()[name].get<float>(); }
  std::string Text(const char* name) const { return config()[name].get<std::string>(); }
  bool Flag(const char* name) const { return config()[name].get<bool>(); }
  std::vector<int32_t> Ids(const char* name) const {
    return config()[name].get<std::vector<int32_t>>();
  }
  // The cuts of "units" as ranges of rows.
  std::vector<RowRange> Units() const {
    const auto cuts = config()["units"].get<std::vector<int64_t>>();
    std::vector<RowRange> units;
    for (size_t i = 1; i < cuts.size(); ++i) units.push_back({cuts[i - 1], cuts[i]});
    return units;
  }

  bool Has(const char* name) const { return case_["inputs"].contains(name); }
  Floats In(const char* name) const {
    const nlohmann::json& input = case_["inputs"][name];
    int64_t count = 1;
    for (const int64_t axis : input["shape"]) count *= axis;
    const nlohmann::json& draw = input["draw"];
    const uint64_t seed = draw[0];
    const double low = draw[1], high = draw[2];
    const int bits = draw[3];
    Floats out;
    for (uint64_t i = 1; i <= static_cast<uint64_t>(count); ++i) {
      const uint64_t word = Mix(seed + i * 0x9e3779b97f4a7c15u) >> (64 - bits);
      out.push_back(
          static_cast<float>(low + (high - low) * std::ldexp(static_cast<double>(word), -bits)));
    }
    return out;
  }
  // Matrix `index` of an input [count][n][k].
  Floats Matrix(const char* name, int64_t index, int64_t n, int64_t k) const {
    const Floats all = In(name);
    return Floats(all.begin() + index * n * k, all.begin() + (index + 1) * n * k);
  }

  const nlohmann::json& expected() const { return case_["expected"]; }

 private:
  const nlohmann::json& case_;
};

// The largest distance of `got` from a stored tensor: of an element in units of its own size plus
// the tensor's root mean square, of its norm and of its products with the vectors of signs in units
// of its norm. A tensor that is zero but for the oracle's own rounding has distances in units of 1.
inline double Deviation(const nlohmann::json& want, std::span<const float> got) {
  const uint64_t size = want["size"];
  if (got.size() != size) return INFINITY;
  const double l2 = want["l2"], unit = l2 > 1e-12 ? l2 : 1.0;
  const double rms = unit / std::sqrt(static_cast<double>(size));
  const bool whole = !want.contains("signs");
  double worst = 0, squares = 0;
  // A NaN is a distance without bound.
  const auto note = [&](double d) { worst = std::isnan(d) ? INFINITY : std::max(worst, d); };
  const nlohmann::json& values = want["values"];
  for (uint64_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    note(std::abs(got[whole ? i : Mix(i + 1) % size] - value) / (rms + std::abs(value)));
  }
  for (const float x : got) squares += double{x} * x;
  note(std::abs(std::sqrt(squares) - l2) / unit);
  for (uint64_t s = 0; !whole && s < want["signs"].size(); ++s) {
    double sum = 0;
    for (uint64_t i = 0; i < size; ++i) {
      sum += Mix(((s + 1) << 32) + i) & 1 ? -double{got[i]} : double{got[i]};
    }
    const double product = want["signs"][s];
    note(std::abs(sum - product) / unit);
  }
  return worst;
}

// Bounds of an operation's outputs and of its gradients.
struct OpBounds {
  double forward = 0, gradient = 0;
};

// Every tensor that the case names must be there and within the bound; `worst` keeps the largest.
inline void ExpectWithin(const OpCase& c, const Tensors& got, const OpBounds& bounds,
                         OpBounds* worst) {
  EXPECT_EQ(got.size(), c.expected().size());
  for (const auto& [name, want] : c.expected().items()) {
    const auto found = got.find(name);
    if (found == got.end()) {
      ADD_FAILURE() << "not computed: " << name;
      continue;
    }
    // Gradients are those of inputs: d<input>.
    const bool gradient = name.starts_with("d") && c.Has(name.c_str() + 1);
    const double deviation = Deviation(want, found->second);
    EXPECT_LE(deviation, gradient ? bounds.gradient : bounds.forward) << name;
    double& most = gradient ? worst->gradient : worst->forward;
    most = std::max(most, deviation);
  }
}

// body(pool) under every instruction set of this machine.
inline void OnEverySet(const std::function<void(Pool&)>& body) {
  for (const char* set : {"avx2", "avx512", "avx512_bf16"}) {
    if (!SetIsa(set).ok()) continue;
    SCOPED_TRACE(set);
    Pool pool(2);
    body(pool);
  }
  ASSERT_TRUE(SetIsa("auto").ok());
}

// Matrices in the execution layout of a mode, with their transposes and gradients.
class Weights {
 public:
  // rows: matrices [n][k]. mode: "f32", else bfloat16.
  Weights(Pool& pool, std::span<const Floats> rows, int64_t n, int64_t k, const std::string& mode)
      : n_(n), k_(k) {
    for (const Floats& matrix : rows) {
      f32_.push_back(Zeros(PanelFloats(n, k)));
      PackPanels(pool, matrix.data(), n, k, f32_.back().data());
      if (mode != "f32") {
        rounded_.emplace_back(static_cast<size_t>(PanelElements(Element::kBf16, n, k)));
        EXPECT_TRUE(PackPanels(pool, matrix.data(), n, k, rounded_.back().data()));
      }
      transposed_.push_back(Zeros(PanelFloats(k, n)));
      TransposePanels(pool, f32_.back().data(), n, k, transposed_.back().data());
      gradient_.push_back(Zeros(PanelFloats(n, k)));
    }
    for (size_t i = 0; i < f32_.size(); ++i) {
      panels_.push_back(mode == "f32" ? ConstPanels(f32_[i].data())
                                      : ConstPanels(rounded_[i].data()));
      backward_.push_back(transposed_[i].data());
      accumulators_.push_back(gradient_[i].data());
    }
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  std::span<const ConstPanels> panels() const { return panels_; }
  std::span<const ConstPanels> backward() const { return backward_; }
  std::span<float* const> accumulators() const { return accumulators_; }
  // Gradients, rows [n][k], matrix after matrix.
  Floats Gradients(Pool& pool) const {
    Floats all;
    for (const Floats& panels : gradient_) {
      Floats rows = Zeros(n_ * k_);
      UnpackPanels(pool, panels.data(), n_, k_, rows.data());
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }

 private:
  int64_t n_, k_;
  std::vector<Floats> f32_, transposed_, gradient_;
  std::vector<std::vector<BFloat16>> rounded_;
  std::vector<ConstPanels> panels_, backward_;
  std::vector<float*> accumulators_;
};

inline Inputs InputsOf(const std::string& mode) {
  return mode == "bf16" ? Inputs::kBf16 : Inputs::kF32;
}

// By operation, and by name where one case needs more than its operation.
using OpBoundsTable = std::map<std::string, OpBounds>;

// Key of a case in the table.
inline std::string BoundsKey(const OpBoundsTable& bounds, const OpCase& c) {
  return bounds.contains(c.name()) ? c.name() : c.op();
}

// Runs every case of a file on every instruction set, and prints what was measured.
inline void CheckOps(const std::string& file_name, const OpBoundsTable& bounds,
                     const std::function<Tensors(Pool&, const OpCase&)>& compute) {
  const NumericThread numeric;
  OpBoundsTable worst;
  golden::GoldenFile file(file_name);
  file.Run([&](const nlohmann::json& json) -> std::string {
    const OpCase c(json);
    const std::string key = BoundsKey(bounds, c);
    const auto bound = bounds.find(key);
    if (bound == bounds.end()) return "no operation of this name";
    OnEverySet([&](Pool& pool) { ExpectWithin(c, compute(pool, c), bound->second, &worst[key]); });
    return "";
  });
  for (const auto& [op, most] : worst) {
    std::printf("%s: forward %.2g, gradient %.2g\n", op.c_str(), most.forward, most.gradient);
  }
  file.ExpectSkipped(0);
}

// A mistake that somebody could make in case `name`, computed by `wrong`: `tensor` must then lie at
// least 100 times its bound away.
inline void ExpectSeen(const std::string& file_name, const std::string& name,
                       const OpBoundsTable& bounds, const std::string& tensor,
                       const std::function<Tensors(Pool&, const OpCase&)>& wrong) {
  SCOPED_TRACE(name);
  const NumericThread numeric;
  const golden::GoldenFile file(file_name);
  if (!file.present()) return;  // reported
  for (const nlohmann::json& json : file.root()["cases"]) {
    const OpCase c(json);
    if (c.name() != name) continue;
    Pool pool(1);
    const OpBounds& bound = bounds.at(BoundsKey(bounds, c));
    EXPECT_GT(Deviation(c.expected()[tensor], wrong(pool, c).at(tensor)),
              100 * std::max(bound.forward, bound.gradient));
    return;
  }
  EXPECT_FALSE(golden::IsDefaultGoldenDir()) << "no such case";
}

}  // namespace titan::kernels::tests

#endif  // TITAN_TESTS_SUPPORT_OP_GRADIENTS_H_
