// SPDX-License-Identifier: Apache-2.0
// A config.json: what is accepted is valid, and written out it is read back equal.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/formats/model_bundle.h"
#include "core/formats/model_config.h"

using namespace titan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)formats::DecodeBundle(text, "fuzz");
  (void)formats::ChatTemplateOf(text, "fuzz");
  const auto config = formats::ParseHfConfig(text, "fuzz");
  if (!config.ok()) return 0;
  if (!formats::ValidateModelConfig(*config).ok()) std::abort();
  const auto again = formats::ParseHfConfig(formats::ToHfConfigJson(*config), "again");
  if (!again.ok() || *again != *config) std::abort();
  if (config->num_layers < 64 && formats::CanonicalTensors(*config).empty()) std::abort();
  return 0;
}
