// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/machine.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/kernels/isa.h"

namespace titan::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// The rate of FMAs on registers alone: 12 independent chains, more than latency x units of any
// core.
#define TITAN_TWELVE_FMAS(r)                                                            \
  "vfmadd231ps %%" r "12, %%" r "13, %%" r "0\n vfmadd231ps %%" r "12, %%" r "13, %%" r \
  "1\n"                                                                                 \
  "vfmadd231ps %%" r "12, %%" r "13, %%" r "2\n vfmadd231ps %%" r "12, %%" r "13, %%" r \
  "3\n"                                                                                 \
  "vfmadd231ps %%" r "12, %%" r "13, %%" r "4\n vfmadd231ps %%" r "12, %%" r "13, %%" r \
  "5\n"                                                                                 \
  "vfmadd231ps %%" r "12, %%" r "13, %%" r "6\n vfmadd231ps %%" r "12, %%" r "13, %%" r \
  "7\n"                                                                                 \
  "vfmadd231ps %%" r "12, %%" r "13, %%" r "8\n vfmadd231ps %%" r "12, %%" r "13, %%" r \
  "9\n"                                                                                 \
  "vfmadd231ps %%" r "12, %%" r "13, %%" r "10\n vfmadd231ps %%" r "12, %%" r "13, %%" r "11\n"
#define TITAN_FMA_CLOBBERS                                                                 \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13"

// The registers hold whatever the caller left: the rate does not depend on values with FTZ and DAZ
// on.
__attribute__((target("avx512f"))) void Fma512(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) asm volatile(TITAN_TWELVE_FMAS("zmm")::: TITAN_FMA_CLOBBERS);
}
__attribute__((target("avx2,fma"))) void Fma256(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) asm volatile(TITAN_TWELVE_FMAS("ymm")::: TITAN_FMA_CLOBBERS);
}

// Reads `bytes` from `data` on as two streams, with the widest loads and a fetch half a page ahead:
// of what was tried this reads fastest. `seen` keeps the compiler from leaving it out.
constexpr int64_t kFetchAhead = 2048, kLine = 64;

__attribute__((target("avx512f"))) void Read512(const char* data, int64_t bytes, int* seen) {
  const int64_t half = bytes / 2;
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t i = 0; i < half; i += kLine) {
    _mm_prefetch(data + i + kFetchAhead, _MM_HINT_T1);
    _mm_prefetch(data + half + i + kFetchAhead, _MM_HINT_T1);
    a = _mm512_or_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_or_si512(b, _mm512_loadu_si512(data + half + i));
  }
  _mm512_storeu_si512(seen, _mm512_or_si512(a, b));
}
__attribute__((target("avx2"))) void Read256(const char* data, int64_t bytes, int* seen) {
  const int64_t half = bytes / 2;
  const auto* p = reinterpret_cast<const __m256i*>(data);
  const auto* q = reinterpret_cast<const __m256i*>(data + half);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int64_t i = 0; i < half / kLine; ++i, p += 2, q += 2) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + kFetchAhead, _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(q) + kFetchAhead, _MM_HINT_T1);
    a = _mm256_or_si256(a, _mm256_loadu_si256(p));
    b = _mm256_or_si256(b, _mm256_loadu_si256(p + 1));
    c = _mm256_or_si256(c, _mm256_loadu_si256(q));
    d = _mm256_or_si256(d, _mm256_loadu_si256(q + 1));
  }
  a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(seen), a);
}

}  // namespace

double BestSeconds(const std::function<void()>& body, double budget) {
  double best = 1e9;
  const auto start = Clock::now();
  for (int runs = 0;
       runs < 3 || std::chrono::duration<double>(Clock::now() - start).count() < budget; ++runs) {
    const auto t0 = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - t0).count());
  }
  return best;
}

std::vector<float> RandomFloats(int64_t n, uint32_t seed) {
  std::vector<float> v(static_cast<size_t>(n));
  uint32_t state = seed * 2654435761u + 1;
  for (float& x : v) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return v;
}

double PeakGflops(Pool& pool) {
  constexpr int64_t kRounds = 20000;
  const bool wide = CurrentIsa() == Isa::kAvx512;
  const double seconds =
      BestSeconds([&] { pool.Run(pool.size(), [&](int) { (wide ? Fma512 : Fma256)(kRounds); }); });
  return 2.0 * 12 * kRounds * (wide ? 16 : 8) * pool.size() / seconds * 1e-9;
}

void ReadAll(Pool& pool, const char* data, int64_t bytes) {
  constexpr int64_t kTasks = 64, kSeen = kLine / sizeof(int);
  const int64_t task_bytes = bytes / kTasks / (2 * kLine) * (2 * kLine);
  const bool wide = CurrentIsa() == Isa::kAvx512;
  std::vector<int> seen(kTasks * kSeen);
  pool.Run(kTasks, [&](int task) {
    (wide ? Read512 : Read256)(data + task * task_bytes, task_bytes, &seen[task * kSeen]);
  });
  volatile int used = seen[0];
  static_cast<void>(used);
}

double ReadGigabytes(Pool& pool, int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t room = bytes + kHugePage;
  void* memory = mmap(nullptr, static_cast<size_t>(room), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "no %lld bytes of memory\n", static_cast<long long>(room));
    std::exit(1);
  }
  madvise(memory, static_cast<size_t>(room), MADV_HUGEPAGE);  // where it is refused: small pages
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto* data = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
  std::fill(data, data + bytes, 1);
  const double seconds = BestSeconds([&] { ReadAll(pool, data, bytes); });
  munmap(memory, static_cast<size_t>(room));
  return static_cast<double>(bytes) / seconds * 1e-9;
}

}  // namespace titan::kernels
