// SPDX-License-Identifier: Apache-2.0
#include "trainer/gradient_digest.h"

#include <cstddef>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/panels.h"

namespace titan::trainer {

Hash128 GradientDigest(kernels::Pool& pool, const model::ParameterTable& table,
                       const float* gradient) {
  TITAN_CHECK(table.mode() == model::Mode::kF32);
  Hash128 sum;
  for (int i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table.at(i);
    if (p.owned_step == 0 && table.shard().rank > 0) continue;
    const int64_t panels = p.is_matrix() ? kernels::PanelCount(p.held.size()) : 1;
    if (panels == 0) continue;  // fewer steps than ranks
    const int64_t panel_floats = p.num_floats() / panels;
    const int64_t first_panel = p.is_matrix() ? p.held.begin / kernels::kPanelColumns : 0;
    const float* floats = gradient + p.offset / static_cast<int64_t>(sizeof(float));
    std::vector<Hash128> parts(static_cast<size_t>(panels));
    pool.Run(static_cast<int>(panels), [&](int panel) {
      parts[static_cast<size_t>(panel)] = Hash128Of(
          floats + panel * panel_floats, static_cast<size_t>(panel_floats) * sizeof(float),
          HashFields(static_cast<int64_t>(i), first_panel + panel));
    });
    for (const Hash128& part : parts) sum += part;
  }
  return sum;
}

}  // namespace titan::trainer
