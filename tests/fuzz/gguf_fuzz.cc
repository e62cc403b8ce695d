// SPDX-License-Identifier: Apache-2.0
// A GGUF file: opened as a model, its tensors read, its tokenizer made and used.
#include <cstdint>
#include <vector>

#include "core/formats/gguf.h"
#include "core/formats/gguf_model.h"
#include "core/text/tokenizer.h"
#include "core/text/tokenizer_export.h"
#include "tests/fuzz/memory_file.h"

using namespace titan;

namespace {

constexpr int64_t kMaxElements = 1 << 16;

void ReadTensors(const formats::GgufFile& file) {
  for (const formats::GgufTensor& tensor : file.tensors()) {
    if (!tensor.type.has_value() || tensor.num_elements() > kMaxElements) continue;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    (void)file.ConvertTensor(tensor, values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile bytes(data, size);
  const auto file = formats::GgufFile::Open(bytes.path());
  if (!file.ok()) return 0;
  ReadTensors(*file);
  const auto keys = formats::ReadGgufTokenizer(*file);
  if (keys.ok() && keys->has_value()) {
    formats::TokenizerMaterial material;
    material.gguf = **keys;
    const auto tokenizer = text::Tokenizer::FromMaterial(material, "fuzz");
    if (tokenizer.ok()) {
      (void)(*tokenizer)->Encode("ab cd\n 123 \xc3\xa9");
      (void)text::ToHfTokenizer(material, "fuzz");
    }
  }
  const auto model = formats::OpenGgufModel(bytes.path());
  if (!model.ok()) return 0;
  for (const formats::TensorSpec& tensor : (*model)->tensors()) {
    if (tensor.num_elements() > kMaxElements) continue;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    (void)(*model)->ReadTensorF32(tensor.name, values);
  }
  return 0;
}
