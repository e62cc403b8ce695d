// SPDX-License-Identifier: Apache-2.0
//
// Which instruction set the kernels run, and the floating-point environment of the threads that run
// them. Every kernel exists for AVX2+FMA and for AVX-512, compiled from one source, and gives the
// same bits on both; the choice is speed only and stands in no contract.
//
// A kernel source is written so (Highway's foreach_target compiles the middle part once per
// target):
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "core/kernels/name.cc"
//   #include "core/kernels/targets.h"
//   #include <hwy/foreach_target.h>
//   #include <hwy/highway.h>
//   #if TITAN_KERNEL_TARGET
//   HWY_BEFORE_NAMESPACE();
//   namespace titan::kernels::HWY_NAMESPACE { ... Fn ... }
//   HWY_AFTER_NAMESPACE();
//   #endif
//   #if HWY_ONCE
//   ... TITAN_DISPATCH(Fn)(arguments) ...
//   #endif
#ifndef TITAN_CORE_KERNELS_ISA_H_
#define TITAN_CORE_KERNELS_ISA_H_

#include <string_view>

#include "core/base/status.h"

namespace titan::kernels {

enum class Isa { kAvx2, kAvx512 };

std::string_view IsaName(Isa isa);  // "avx2", "avx512"

// The best set that this CPU and system support. FailedPrecondition without AVX2 and FMA.
StatusOr<Isa> DetectIsa();

// True when products of bfloat16 with bfloat16 (mode BF16) run on vdpbf16ps: the CPU has
// AVX512_BF16, its instruction gave the defined bits when it was probed (dot.h), and the set in use
// is one that names it. Otherwise they run on the set's other instructions, to the same bits.
// Thread-safe.
bool DotInUse();

// The set in use as SetIsa takes it: "avx2", "avx512" or "avx512_bf16". For logs.
std::string_view CurrentIsaName();

// The set in use by the whole process: the detected one until SetIsa. Ends the process on a CPU
// without AVX2 and FMA, so daemons call DetectIsa or SetIsa first. Thread-safe.
Isa CurrentIsa();

// Forces a set. A kernel that runs meanwhile may go over to it part by part: the bits are those of
// both. FailedPrecondition when the CPU
// lacks it, or lacks AVX512_BF16 or has another vdpbf16ps than the defined one where that is
// forced. kAvx512 is the set without vdpbf16ps. The text form is the one of configurations: "auto"
// (the best), "avx2", "avx512" or "avx512_bf16"; InvalidArgument otherwise.
Status SetIsa(Isa isa);
Status SetIsa(std::string_view name);

// True when the calling thread rounds to nearest even with flush-to-zero and denormals-are-zero on.
bool NumericEnvironmentIsSet();

// Sets that environment for the calling thread and restores the former one when destroyed. Pool
// does this for its threads and for the caller during Run.
class NumericThread {
 public:
  NumericThread();
  ~NumericThread();
  NumericThread(const NumericThread&) = delete;
  NumericThread& operator=(const NumericThread&) = delete;

 private:
  unsigned saved_;
};

}  // namespace titan::kernels

// Selects the compiled form of a function for the current instruction set; see the recipe above.
#define TITAN_DISPATCH(function)                                                        \
  (::titan::kernels::CurrentIsa() == ::titan::kernels::Isa::kAvx512 ? &N_AVX3::function \
                                                                    : &N_AVX2::function)

#endif  // TITAN_CORE_KERNELS_ISA_H_
