// SPDX-License-Identifier: Apache-2.0
//
// The table behind core/kernels/blocking.cc: for each instruction set of this machine and each
// number of its row, the speed of linear layers with other values of that number, against the row
// as it is. Plain text, one line a value: the geometric mean over the shapes and each shape's own
// ratio, best of interleaved rounds. Usage: blocking_sweep [threads] [rounds]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/kernels/machine.h"
#include "core/kernels/blocking.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels {
namespace {

using internal::Blocking;

struct Shape {
  int64_t m, n, k;
};
// Projections and MLPs of models of 0.1 to 1 billion weights; the last two have long chains.
constexpr Shape kShapes[] = {{16, 1536, 576},  {256, 1536, 576},  {1024, 576, 1536},
                             {2048, 576, 576}, {512, 1024, 3072}, {512, 2048, 8192}};

struct Number {
  const char* name;
  int64_t Blocking::*member;
  std::vector<int64_t> values;
};

// Operands of a shape.
struct Operands {
  explicit Operands(const Shape& s)
      : shape(s),
        x(RandomFloats(s.m * s.k, 1)),
        panels(RandomFloats(PanelFloats(s.n, s.k), 2)),
        out(static_cast<size_t>(s.m * s.n)) {}
  double Seconds(Pool& pool) {
    return BestSeconds(
        [&] {
          Linear(pool, {x.data(), shape.k, shape.m, shape.k},
                 {panels.data(), shape.n, LeafCount(shape.k, 0), nullptr, out.data(), shape.n});
        },
        0.03);
  }
  Shape shape;
  std::vector<float> x, panels, out;
};

void Sweep(Pool& pool, int rounds, Isa isa, const Number& number, std::vector<Operands>& operands) {
  const Blocking current = internal::CurrentBlocking();
  std::vector<std::vector<double>> best(number.values.size() + 1,
                                        std::vector<double>(operands.size(), 1e9));
  for (int round = 0; round < rounds; ++round) {
    for (size_t v = 0; v < best.size(); ++v) {
      Blocking blocking = current;
      if (v > 0) blocking.*number.member = number.values[v - 1];
      internal::SetBlocking(isa, blocking);
      for (size_t s = 0; s < operands.size(); ++s) {
        best[v][s] = std::min(best[v][s], operands[s].Seconds(pool));
      }
    }
  }
  internal::SetBlocking(isa, current);
  for (size_t v = 1; v < best.size(); ++v) {
    double logs = 0;
    for (size_t s = 0; s < operands.size(); ++s) logs += std::log(best[0][s] / best[v][s]);
    const bool is_current = number.values[v - 1] == current.*number.member;
    std::printf("%-18s %8lld%c %6.3f ", number.name, static_cast<long long>(number.values[v - 1]),
                is_current ? '*' : ' ', std::exp(logs / static_cast<double>(operands.size())));
    for (size_t s = 0; s < operands.size(); ++s) std::printf(" %12.3f", best[0][s] / best[v][s]);
    std::printf("\n");
  }
}

void Run(int threads, int rounds, Isa isa) {
  Pool pool(threads);
  const std::vector<Number> numbers = {
      {"row_block_floats", &Blocking::row_block_floats, {32768, 65536, 131072, 196608, 262144}},
      {"whole_chain", &Blocking::whole_chain, {1024, 2048, 4096, 8192}},
      {"chain_part", &Blocking::chain_part, {512, 1024, 2048}},
      {"long_chain_rows", &Blocking::long_chain_rows, {56, 98, 196, 392}}};
  std::vector<Operands> operands;
  for (const Shape& shape : kShapes) operands.emplace_back(shape);
  std::printf("%s, %d threads; * is in use; speed against it\n%-28s %6s ",
              std::string(IsaName(isa)).c_str(), threads, "number and value", "mean");
  for (const Shape& s : kShapes) {
    std::printf(
        " %12s",
        (std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k)).c_str());
  }
  std::printf("\n");
  for (const Number& number : numbers) Sweep(pool, rounds, isa, number, operands);
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  if (threads < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: blocking_sweep [threads] [rounds]\n");
    return 2;
  }
  const NumericThread numeric;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (SetIsa(isa).ok()) Run(threads, rounds, isa);
  }
  return 0;
}

}  // namespace
}  // namespace titan::kernels

int main(int argc, char** argv) { return titan::kernels::Main(argc, argv); }
