// SPDX-License-Identifier: Apache-2.0
// A data file: rows of JSON. What is accepted has no more rows than bytes.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "orchestrator/dataset.h"

using namespace titan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto dataset = orchestrator::ParseDataset(text, "fuzz.jsonl");
  if (dataset.ok() && dataset->rows.size() > size) std::abort();
  return 0;
}
