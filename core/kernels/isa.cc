// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/isa.h"

#include <xmmintrin.h>

#include <atomic>
#include <string>

#include "core/base/check.h"
#include "core/kernels/dot.h"
#include "core/kernels/isa_check.h"

namespace titan::kernels {
namespace {

constexpr unsigned kFlushBits = 0x8040;     // FTZ and DAZ
constexpr unsigned kRoundingBits = 0x6000;  // zero: to nearest even

// What is in use. Its first two are those of Isa; the third is kAvx512 with vdpbf16ps.
enum Level : int { kUnset = -1, kLevelAvx2, kLevelAvx512, kLevelDot };

std::atomic<int> current_level{kUnset};

bool CpuHasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

StatusOr<Level> DetectLevel() {
  TITAN_ASSIGN_OR_RETURN(const Isa best, DetectIsa());
  if (best == Isa::kAvx2) return kLevelAvx2;
  return internal::DotIsAdmitted() ? kLevelDot : kLevelAvx512;
}

// The level that a configuration's name asks for.
StatusOr<Level> LevelOf(std::string_view name) {
  if (name != "auto" && name != "avx2" && name != "avx512" && name != "avx512_bf16") {
    return InvalidArgument("isa '" + std::string(name) +
                           "' is not one of auto, avx2, avx512, avx512_bf16");
  }
  TITAN_ASSIGN_OR_RETURN(const Isa isa, DetectIsa());
  if (name == "avx2") return kLevelAvx2;
  if (name == "avx512") {
    if (isa == Isa::kAvx512) return kLevelAvx512;
    return FailedPrecondition(
        "isa avx512 is forced, but this CPU lacks AVX-512 F, VL, DQ or BW; use avx2 "
        "or auto");
  }
  TITAN_ASSIGN_OR_RETURN(const Level best, DetectLevel());
  if (name == "avx512_bf16" && best != kLevelDot) {
    return FailedPrecondition(
        internal::CpuHasDot()
            ? "isa avx512_bf16 is forced, but vdpbf16ps of this CPU does not give the bits of the "
              "defined order; use avx512 or auto"
            : "isa avx512_bf16 is forced, but this CPU lacks AVX512_BF16; use avx512, avx2 or "
              "auto");
  }
  return best;
}

int CurrentLevel() {
  int level = current_level.load(std::memory_order_relaxed);
  if (level == kUnset) {
    const StatusOr<Level> detected = DetectLevel();
    TITAN_CHECK(detected.ok());
    int expected = kUnset;
    current_level.compare_exchange_strong(expected, *detected);
    level = current_level.load(std::memory_order_relaxed);
  }
  return level;
}

}  // namespace

std::string_view IsaName(Isa isa) { return isa == Isa::kAvx512 ? "avx512" : "avx2"; }

StatusOr<Isa> DetectIsa() {
  __builtin_cpu_init();
  if (CpuHasAvx512()) return Isa::kAvx512;
  if (CpuHasAvx2()) return Isa::kAvx2;
  return FailedPrecondition(
      "this CPU lacks AVX2 or FMA, without which no kernel computes the defined order; run on a "
      "CPU with both");
}

Isa CurrentIsa() { return CurrentLevel() == kLevelAvx2 ? Isa::kAvx2 : Isa::kAvx512; }

bool DotInUse() { return CurrentLevel() == kLevelDot; }

std::string_view CurrentIsaName() { return DotInUse() ? "avx512_bf16" : IsaName(CurrentIsa()); }

Status SetIsa(Isa isa) { return SetIsa(IsaName(isa)); }

Status SetIsa(std::string_view name) {
  TITAN_ASSIGN_OR_RETURN(const Level level, LevelOf(name));
  current_level.store(level, std::memory_order_relaxed);
  return OkStatus();
}

Status CheckIsa(std::string_view name) { return LevelOf(name).status(); }

bool NumericEnvironmentIsSet() {
  return (_mm_getcsr() & (kFlushBits | kRoundingBits)) == kFlushBits;
}

NumericThread::NumericThread() : saved_(_mm_getcsr()) {
  const unsigned wanted = (saved_ & ~kRoundingBits) | kFlushBits;
  if (wanted != saved_) _mm_setcsr(wanted);
}

NumericThread::~NumericThread() {
  constexpr unsigned kControl = kFlushBits | kRoundingBits;
  const unsigned now = _mm_getcsr();
  if ((now & kControl) != (saved_ & kControl)) _mm_setcsr((now & ~kControl) | (saved_ & kControl));
}

}  // namespace titan::kernels
