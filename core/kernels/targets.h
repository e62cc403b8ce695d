// SPDX-License-Identifier: Apache-2.0
//
// Restricts Highway to the two targets whose MulAdd is one rounding. Included before
// <hwy/foreach_target.h>, see isa.h. The baseline target of the build stays enabled because Highway
// demands one; kernels compile nothing for it (TITAN_KERNEL_TARGET is 0 there).
#ifndef TITAN_CORE_KERNELS_TARGETS_H_
#define TITAN_CORE_KERNELS_TARGETS_H_

#if defined(HWY_DISABLED_TARGETS)
#error "core/kernels/targets.h must come before any Highway header"
#endif
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_AVX3_DL)

#define TITAN_KERNEL_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

#endif  // TITAN_CORE_KERNELS_TARGETS_H_
