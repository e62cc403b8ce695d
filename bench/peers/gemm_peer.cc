// SPDX-License-Identifier: Apache-2.0
//
// gemm_peer KIND LIBRARY.so MxNxK...: what titan-bench-gemm measures, by another library: out
// [M][N] = x [M][K] times the transpose of w [N][K]. KIND: openblas (cblas_sgemm), mkl (cblas_sgemm
// with the weights packed beforehand), onednn and onednn-bf16 (matmul with weights in the layout
// that the library chooses). Threads are the library's, by OMP_NUM_THREADS and the like. Built by
// bench/kernels.py against the headers of the virtual environment.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#ifdef WITH_ONEDNN
#include "oneapi/dnnl/dnnl.hpp"
#endif

namespace {

constexpr int64_t kWeightBytes = 128 << 20;
constexpr int kRuns = 7;
constexpr double kRunSeconds = 0.08;
constexpr int kLeastRuns = 3;         // of a shape whose calls are long,
constexpr double kMostSeconds = 2.0;  // once they have taken this long
constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112, kPacked = 151, kMatrixB = 162;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void* Symbol(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "gemm_peer: no %s: %s\n", name, dlerror());
    std::exit(1);
  }
  return symbol;
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

// A call on copy `c` of the weights.
struct Problem {
  int64_t copies;
  std::function<void(int64_t c)> call;
};

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);
using PackSize = size_t (*)(int, int, int, int);
using Pack = void (*)(int, int, int, int, int, int, float, const float*, int, float*);
using Compute = void (*)(int, int, int, int, int, int, const float*, int, const float*, int, float,
                         float*, int);

Problem OpenBlas(void* library, int m, int n, int k) {
  auto gemm = reinterpret_cast<Sgemm>(Symbol(library, "scipy_cblas_sgemm"));
  const int64_t size = int64_t{n} * k, copies = std::max<int64_t>(1, kWeightBytes / (size * 4));
  auto w = std::make_shared<std::vector<float>>(RandomFloats(size * copies, 3));
  auto x = std::make_shared<std::vector<float>>(RandomFloats(int64_t{m} * k, 4));
  auto out = std::make_shared<std::vector<float>>(static_cast<size_t>(m) * n);
  return {copies, [=](int64_t c) {
            gemm(kRowMajor, kNoTrans, kTrans, m, n, k, 1.0f, x->data(), k, w->data() + c * size, k,
                 0.0f, out->data(), n);
          }};
}

Problem Mkl(void* library, int m, int n, int k) {
  auto pack_size = reinterpret_cast<PackSize>(Symbol(library, "cblas_sgemm_pack_get_size"));
  auto pack = reinterpret_cast<Pack>(Symbol(library, "cblas_sgemm_pack"));
  auto compute = reinterpret_cast<Compute>(Symbol(library, "cblas_sgemm_compute"));
  const int64_t size = (static_cast<int64_t>(pack_size(kMatrixB, m, n, k)) / 4 + 63) / 16 * 16;
  const int64_t copies = std::max<int64_t>(1, kWeightBytes / (size * 4));
  const std::vector<float> rows = RandomFloats(int64_t{n} * k, 3);
  auto w = std::make_shared<std::vector<float>>(static_cast<size_t>(size * copies + 64));
  float* base = w->data() + (64 - reinterpret_cast<uintptr_t>(w->data()) % 64) / 4;
  for (int64_t c = 0; c < copies; ++c) {
    pack(kRowMajor, kMatrixB, kTrans, m, n, k, 1.0f, rows.data(), k, base + c * size);
  }
  auto x = std::make_shared<std::vector<float>>(RandomFloats(int64_t{m} * k, 4));
  auto out = std::make_shared<std::vector<float>>(static_cast<size_t>(m) * n);
  return {copies, [=](int64_t c) {
            compute(kRowMajor, kNoTrans, kPacked, m, n, k, x->data(), k, base + c * size, k, 0.0f,
                    out->data(), n);
            (void)w;
          }};
}

#ifdef WITH_ONEDNN
Problem OneDnn(bool bf16, int m, int n, int k) {
  using dnnl::memory;
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  static dnnl::stream stream(engine);
  const memory::desc x_desc({m, k}, type, memory::format_tag::ab);
  const memory::desc any({k, n}, type, memory::format_tag::any);
  const memory::desc plain({k, n}, memory::data_type::f32, memory::format_tag::ba);
  const memory::desc out_desc({m, n}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc desc(engine, x_desc, any, out_desc);
  const int64_t bytes = static_cast<int64_t>(desc.weights_desc().get_size());
  const int64_t copies = std::max<int64_t>(1, kWeightBytes / bytes);
  auto rows = std::make_shared<std::vector<float>>(RandomFloats(int64_t{n} * k, 3));
  auto x_rows = std::make_shared<std::vector<float>>(RandomFloats(int64_t{m} * k, 4));
  memory from(plain, engine, rows->data());
  auto weights = std::make_shared<std::vector<memory>>();
  for (int64_t c = 0; c < copies; ++c) {
    memory to(desc.weights_desc(), engine);
    dnnl::reorder(from, to).execute(stream, from, to);
    weights->push_back(to);
  }
  memory x_from({{m, k}, memory::data_type::f32, memory::format_tag::ab}, engine, x_rows->data());
  memory x(x_desc, engine);
  dnnl::reorder(x_from, x).execute(stream, x_from, x);
  memory out(out_desc, engine);
  stream.wait();
  const dnnl::matmul matmul(desc);
  return {copies, [=](int64_t c) {
            matmul.execute(stream, {{DNNL_ARG_SRC, x},
                                    {DNNL_ARG_WEIGHTS, (*weights)[static_cast<size_t>(c)]},
                                    {DNNL_ARG_DST, out}});
            stream.wait();
            (void)x_rows;
          }};
}
#endif

void Measure(const char* id, double flops, const Problem& problem) {
  std::vector<double> rates;
  int64_t copy = 0;
  const double begin = Now();
  for (int run = 0; run <= kRuns; ++run) {
    const double start = Now();
    double end = start;
    int64_t calls = 0;
    if (run > kLeastRuns && start - begin > kMostSeconds) break;
    for (; calls == 0 || end - start < kRunSeconds; ++calls, end = Now()) {
      problem.call(copy);
      copy = (copy + 1) % problem.copies;
    }
    if (run > 0) rates.push_back(flops * static_cast<double>(calls) / (end - start) * 1e-9);
  }
  std::sort(rates.begin(), rates.end());
  std::printf("{\"id\": \"%s\", \"median\": %.2f, \"best\": %.2f}\n", id, rates[rates.size() / 2],
              rates.back());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: gemm_peer KIND LIBRARY.so MxNxK...\n");
    return 2;
  }
  const std::string kind = argv[1];
  void* library = nullptr;
  if (kind == "openblas" || kind == "mkl") {
    library = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      std::fprintf(stderr, "gemm_peer: %s\n", dlerror());
      return 1;
    }
  }
  for (int i = 3; i < argc; ++i) {
    int m = 0, n = 0, k = 0;
    if (std::sscanf(argv[i], "%dx%dx%d", &m, &n, &k) != 3) return 2;
    const double flops = 2.0 * m * n * k;
    if (kind == "openblas") {
      Measure(argv[i], flops, OpenBlas(library, m, n, k));
    } else if (kind == "mkl") {
      Measure(argv[i], flops, Mkl(library, m, n, k));
#ifdef WITH_ONEDNN
    } else if (kind == "onednn" || kind == "onednn-bf16") {
      Measure(argv[i], flops, OneDnn(kind == "onednn-bf16", m, n, k));
#endif
    } else {
      std::fprintf(stderr, "gemm_peer: unknown kind '%s'\n", kind.c_str());
      return 2;
    }
  }
  return 0;
}
