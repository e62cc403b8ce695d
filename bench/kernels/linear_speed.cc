// SPDX-License-Identifier: Apache-2.0
//
// Speed of the linear kernels at the shapes of SmolLM2-135M, against what this core can do: the
// rate of independent FMAs in registers and the bandwidth of a read of the head's size. Plain text,
// for people who tune core/kernels. Usage: linear_speed [threads] [auto|avx2|avx512]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/kernels/machine.h"
#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels {
namespace {

void Run(int threads) {
  Pool pool(threads);
  const std::vector<float> big = RandomFloats(49152 * 576, 3);
  const double peak = PeakGflops(pool),
               read = ReadGigabytes(pool, 4 * static_cast<int64_t>(big.size()));
  std::printf("isa %s, threads %d, peak %.1f GFLOP/s, read %.1f GB/s\n",
              std::string(IsaName(CurrentIsa())).c_str(), threads, peak, read);
  struct Shape {
    int64_t n, k;
  };
  std::printf("%-16s %6s %10s %6s %10s %6s %10s %6s\n", "n x k", "m", "GFLOP/s", "peak", "GB/s",
              "read", "dW", "peak");
  for (const Shape s : {Shape{576, 576}, Shape{1536, 576}, Shape{576, 1536}, Shape{49152, 576}}) {
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 256, 1024}) {
      if (s.n > 10000 && m > 256) continue;
      const std::vector<float> x = RandomFloats(m * s.k, 4), dy = RandomFloats(m * s.n, 5);
      std::vector<float> out(static_cast<size_t>(m * s.n));
      std::vector<float> gradient(static_cast<size_t>(PanelFloats(s.n, s.k)));
      // As in a decoder, the next matrix is another one: walk over the big array, so that small
      // calls read their weights from memory.
      const int64_t size = PanelFloats(s.n, s.k), copies = static_cast<int64_t>(big.size()) / size;
      int64_t copy = 0;
      const double seconds = BestSeconds([&] {
        Linear(pool, {x.data(), s.k, m, s.k},
               {big.data() + copy * size, s.n, LeafCount(s.k, 0), nullptr, out.data(), s.n});
        copy = (copy + 1) % copies;
      });
      const double weight_seconds = m < 64 ? 0 : BestSeconds([&] {
        LinearWeightGradient(pool, {x.data(), s.k, m, s.k}, {dy.data(), s.n, s.n, gradient.data()});
      });
      const double flops = 2e-9 * static_cast<double>(m * s.n * s.k);
      const double bytes = 4e-9 * static_cast<double>(size);
      std::printf("%6lldx%-9lld %6lld %10.1f %5.0f%% %10.1f %5.0f%%", static_cast<long long>(s.n),
                  static_cast<long long>(s.k), static_cast<long long>(m), flops / seconds,
                  100 * flops / seconds / peak, bytes / seconds, 100 * bytes / seconds / read);
      if (weight_seconds > 0) {
        std::printf(" %10.1f %5.0f%%", flops / weight_seconds, 100 * flops / weight_seconds / peak);
      }
      std::printf("\n");
    }
  }
  for (const int64_t m : {1, 8, 256, 1024}) {
    const HeadShape shape = {49152, 576, 2, 1.0f};
    const std::vector<float> x = RandomFloats(m * 576, 6);
    const std::vector<int32_t> targets(static_cast<size_t>(m), 7);
    std::vector<float> lp(static_cast<size_t>(m)), max(lp), sum(lp), dx(x.size()),
        gradient(big.size());
    const double forward = BestSeconds([&] {
      HeadLogProb(pool, shape, x.data(), 576, m, big.data(), targets.data(), lp.data(), max.data(),
                  sum.data(), nullptr);
    });
    const HeadUnit unit = {0, m};
    const double backward = BestSeconds([&] {
      HeadLogProbBackward(pool, shape, x.data(), 576, m, big.data(), targets.data(), lp.data(),
                          max.data(), sum.data(), {&unit, 1}, dx.data(), 576, gradient.data());
    });
    const double flops = 2e-9 * 49152 * 576 * static_cast<double>(m);
    std::printf("head m %5lld: forward %8.2f ms %5.0f%% of peak, backward %8.2f ms %5.0f%%\n",
                static_cast<long long>(m), 1e3 * forward, 100 * flops / forward / peak,
                1e3 * backward, 100 * 3 * flops / backward / peak);
  }
  std::vector<float> transposed(static_cast<size_t>(PanelFloats(576, 1536)));
  const double seconds =
      BestSeconds([&] { TransposePanels(pool, big.data(), 1536, 576, transposed.data()); });
  std::printf("transpose 1536x576: %.1f GB/s read + written\n", 8e-9 * 1536 * 576 / seconds);
}

}  // namespace
}  // namespace titan::kernels

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const titan::Status status =
      titan::kernels::SetIsa(std::string_view(argc > 2 ? argv[2] : "auto"));
  if (!status.ok() || threads < 1) {
    std::fprintf(stderr, "linear_speed: %s\n",
                 status.ok() ? "threads must be positive" : titan::MessageOf(status).c_str());
    return 2;
  }
  titan::kernels::Run(threads);
  return 0;
}
