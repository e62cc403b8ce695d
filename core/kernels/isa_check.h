// SPDX-License-Identifier: Apache-2.0
//
// Whether an instruction set can be chosen, for checks of configurations: isa.h without its recipe.
#ifndef TITAN_CORE_KERNELS_ISA_CHECK_H_
#define TITAN_CORE_KERNELS_ISA_CHECK_H_

#include <string_view>

#include "core/base/status.h"

namespace titan::kernels {

// What SetIsa(name) of isa.h would answer on this CPU; changes nothing. Thread-safe.
Status CheckIsa(std::string_view name);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ISA_CHECK_H_
