// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-gemm MODE THREADS MxNxK...: GFLOP/s of Linear at each shape, best and median of runs,
// one JSON object a line; first the bounds of the machine. MODE is f32, w16 or bf16 (x is rounded
// in the call). As in a decoder the next call reads another matrix: copies of 128 MiB together are
// used in turn, in small pages or, with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, in huge ones, as
// weight slots are.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/machine.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels {
namespace {

constexpr int64_t kWeightBytes = 128 << 20;
constexpr size_t kAlignment = 4096;
constexpr int kRuns = 7;
constexpr double kRunSeconds = 0.08;
constexpr int kLeastRuns = 3;         // of a shape whose calls are long,
constexpr double kMostSeconds = 2.0;  // once they have taken this long

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename W>
void Shape(Pool& pool, Inputs inputs, int64_t m, int64_t n, int64_t k) {
  const int64_t size = PanelElements(kElementOf<W>, n, k);
  const int64_t copies =
      std::max<int64_t>(1, kWeightBytes / (size * static_cast<int64_t>(sizeof(W))));
  std::vector<W> memory(static_cast<size_t>(size * copies) + kAlignment / sizeof(W));
  void* aligned = memory.data();
  size_t space = memory.size() * sizeof(W);
  W* weights = static_cast<W*>(
      std::align(kAlignment, static_cast<size_t>(size * copies) * sizeof(W), aligned, space));
  {
    const std::vector<float> rows = RandomFloats(n * k, 3);
    if constexpr (std::is_same_v<W, float>) {
      PackPanels(pool, rows.data(), n, k, weights);
    } else if (!PackPanels(pool, rows.data(), n, k, weights)) {
      std::exit(1);
    }
  }
  for (int64_t c = 1; c < copies; ++c) std::copy(weights, weights + size, weights + c * size);
  const std::vector<float> x = RandomFloats(m * k, 4);
  std::vector<float> out(static_cast<size_t>(m * n));
  const int leaves = LeafCount(k, 0);
  int64_t copy = 0;
  std::vector<double> rates;
  const double begin = Now();
  for (int run = 0; run <= kRuns; ++run) {
    const double start = Now();
    double end = start;
    int64_t calls = 0;
    if (run > kLeastRuns && start - begin > kMostSeconds) break;
    for (; calls == 0 || end - start < kRunSeconds; ++calls, end = Now()) {
      Linear(pool, {x.data(), k, m, k, inputs},
             {weights + copy * size, n, leaves, nullptr, out.data(), n});
      copy = (copy + 1) % copies;
    }
    if (run > 0) {
      rates.push_back(2e-9 * static_cast<double>(m * n * k * calls) / (end - start));
    }
  }
  std::sort(rates.begin(), rates.end());
  std::printf("{\"id\": \"%lldx%lldx%lld\", \"median\": %.2f, \"best\": %.2f}\n",
              static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k),
              rates[rates.size() / 2], rates.back());
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  if (argc < 4 || (mode != "f32" && mode != "w16" && mode != "bf16") || threads < 1) {
    std::fprintf(stderr, "usage: titan-bench-gemm f32|w16|bf16 THREADS MxNxK...\n");
    return 2;
  }
  if (const Status status = SetIsa(std::string_view("auto")); !status.ok()) {
    std::fprintf(stderr, "titan-bench-gemm: %s\n", status.ToString().c_str());
    return 1;
  }
  const NumericThread numeric;
  Pool pool(threads);
  std::printf("{\"id\": \"peak\", \"gflops\": %.1f, \"read_gbytes\": %.1f}\n", PeakGflops(pool),
              ReadGigabytes(pool, kWeightBytes));
  for (int i = 3; i < argc; ++i) {
    long long m = 0, n = 0, k = 0;
    char end = 0;
    if (std::sscanf(argv[i], "%lldx%lldx%lld%c", &m, &n, &k, &end) != 3 || m < 1 || n < 1 ||
        k < 1 || m > 1 << 16 || n > 1 << 20 || k > 1 << 16) {
      std::fprintf(stderr, "titan-bench-gemm: '%s' is no shape MxNxK\n", argv[i]);
      return 2;
    }
    if (mode == "f32") {
      Shape<float>(pool, Inputs::kF32, m, n, k);
    } else {
      Shape<BFloat16>(pool, mode == "w16" ? Inputs::kF32 : Inputs::kBf16, m, n, k);
    }
  }
  return 0;
}

}  // namespace
}  // namespace titan::kernels

int main(int argc, char** argv) { return titan::kernels::Main(argc, argv); }
