// SPDX-License-Identifier: Apache-2.0
//
// A GGUF file as a ModelSource: metadata keys to ModelConfig, tensor names to Hugging Face names,
// and the row order of q and k. Architectures: llama, qwen2, qwen3.
#ifndef TITAN_CORE_FORMATS_GGUF_MODEL_H_
#define TITAN_CORE_FORMATS_GGUF_MODEL_H_

#include <memory>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/formats/gguf.h"
#include "core/formats/model_config.h"
#include "core/formats/model_source.h"

namespace titan::formats {

// The GGUF name of a tensor of CanonicalTensors; "" for a name that has none.
std::string GgufNameOf(std::string_view hf_name);

// Files of architecture llama hold the rows of q and k (weights and biases) for interleaved rotary
// pairs: within a head of d rows, HF row s*(d/2) + i is file row 2*i + s. True for those tensors.
bool HasInterleavedRows(std::string_view family, std::string_view hf_name);
// The file row of HF row `row` in such a tensor.
int64_t InterleavedRowOf(int64_t row, int64_t head_dim);

// Reads the configuration out of the metadata (and the tensor table: tied head, biases,
// vocabulary).
StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);

// The tokenizer keys; nullopt if the file has no tokenizer.
StatusOr<std::optional<GgufTokenizer>> ReadGgufTokenizer(const GgufFile& file);

StatusOr<std::unique_ptr<ModelSource>> OpenGgufModel(const std::string& path);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_GGUF_MODEL_H_
