// SPDX-License-Identifier: Apache-2.0
//
// ModelSource: one way to read a model, whatever the files: a GGUF file, or a folder in Hugging
// Face layout (config.json, model.safetensors or model.safetensors.index.json with shards,
// tokenizer.json, tokenizer_config.json, chat_template.jinja). Tensors have their Hugging Face
// names, shapes and row order in both cases.
//
// Opening checks that every tensor of CanonicalTensors(config) is there with the right shape and
// that no other is; reading tensors can still fail on their values. All methods are const and may
// be called from any thread; the files are mapped and must not be changed while the source lives.
#ifndef TITAN_CORE_FORMATS_MODEL_SOURCE_H_
#define TITAN_CORE_FORMATS_MODEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"

namespace titan::formats {

// The tokenizer keys of a GGUF file (tokenizer.ggml.*), as they stand there.
struct GgufTokenizer {
  std::string model;  // "gpt2" = byte-level BPE, "llama" = SentencePiece's BPE
  std::string pre;    // names the pre-tokenizer, for example "smollm"
  std::vector<std::string> tokens;
  std::vector<int32_t>
      token_types;                  // llama.cpp's numbers: 1 normal, 3 control, 4 user-defined, ...
  std::vector<std::string> merges;  // "left right"
  std::vector<float> scores;        // of the tokens, for model "llama"; else empty
  int32_t bos_id = -1, eos_id = -1, unk_id = -1, pad_id = -1;  // -1: none
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = true;  // model "llama": a space before each text
};

// What core/text makes a tokenizer of: exactly one of the two is set; neither = the model has none.
struct TokenizerMaterial {
  std::optional<GgufTokenizer> gguf;
  std::string tokenizer_json;         // text of tokenizer.json
  std::string tokenizer_config_json;  // text of tokenizer_config.json; "" = there is none

  bool empty() const { return !gguf.has_value() && tokenizer_json.empty(); }
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // The path given to OpenModelSource.
  virtual const std::string& path() const = 0;
  virtual const ModelConfig& config() const = 0;
  // CanonicalTensors(config()), in that order.
  virtual const std::vector<TensorSpec>& tensors() const = 0;

  // Writes the tensor's elements, row-major, as f32: exact conversion of the stored type, denormals
  // flushed to a zero of the same sign by integer operations. NotFound: no tensor of this name.
  // InvalidArgument: the span's size is not num_elements(), or an element is NaN or infinite (named
  // with its index). REQUIRES of the caller: nothing about the contents of out before or after a
  // failure.
  virtual Status ReadTensorF32(std::string_view name, std::span<float> out) const = 0;

  virtual const TokenizerMaterial& tokenizer() const = 0;
  // The model's default chat template; "" = it has none.
  virtual const std::string& chat_template() const = 0;
  // Text of generation_config.json, a JSON object; "" = it has none.
  virtual const std::string& generation_config() const = 0;
};

// Opens a GGUF file, a Hugging Face folder, or a folder without config.json that holds one GGUF
// file; told apart by what they hold. NotFound: no such path, or nothing of a model there.
// InvalidArgument: malformed, naming file and field. Unimplemented: not covered, by name.
StatusOr<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_MODEL_SOURCE_H_
