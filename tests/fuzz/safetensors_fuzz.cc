// SPDX-License-Identifier: Apache-2.0
// A safetensors file: opened, every tensor converted.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/formats/safetensors.h"
#include "tests/fuzz/memory_file.h"

using namespace titan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile bytes(data, size);
  const auto file = formats::SafetensorsFile::Open(bytes.path());
  if (!file.ok()) return 0;
  for (const auto& [name, tensor] : file->tensors()) {
    // What was accepted lies in the file, so it cannot be larger than it.
    if (tensor.bytes.size() > size) std::abort();
    if (!tensor.type.has_value()) continue;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    (void)file->ConvertTensor(name, values);
  }
  return 0;
}
