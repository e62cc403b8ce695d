// SPDX-License-Identifier: Apache-2.0
//
// A model folder for who reads its configuration and tokenizer and never its weights: a golden
// model's configuration with a vocabulary as large as the golden tokenizer's, and weights of the
// shapes that it asks for, all zero. Test code.
#ifndef TITAN_TESTS_SUPPORT_TINY_MODEL_FOLDER_H_
#define TITAN_TESTS_SUPPORT_TINY_MODEL_FOLDER_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace titan::test {

inline constexpr int kTinyVocabulary = 600;  // of tiny_bpe.tokenizer.json

// The tensors of llama_gqa_untied with another vocabulary, f32.
class TinyWeights {
 public:
  explicit TinyWeights(int vocabulary) {
    Add("model.embed_tokens.weight", vocabulary, 64);
    Add("lm_head.weight", vocabulary, 64);
    Add("model.norm.weight", 64);
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string at = layer;
      Add(at + "self_attn.q_proj.weight", 64, 64);
      Add(at + "self_attn.k_proj.weight", 32, 64);
      Add(at + "self_attn.v_proj.weight", 32, 64);
      Add(at + "self_attn.o_proj.weight", 64, 64);
      Add(at + "mlp.gate_proj.weight", 128, 64);
      Add(at + "mlp.up_proj.weight", 128, 64);
      Add(at + "mlp.down_proj.weight", 64, 128);
      Add(at + "input_layernorm.weight", 64);
      Add(at + "post_attention_layernorm.weight", 64);
    }
  }
  void Write(const std::string& path) const {
    const std::string header = "{" + entries_ + "}";
    const uint64_t size = header.size();
    {
      std::ofstream out(path, std::ios::binary);
      for (int i = 0; i < 8; ++i) out.put(static_cast<char>(size >> (8 * i) & 0xff));
      out << header;
    }
    std::filesystem::resize_file(path, 8 + size + num_bytes_);  // zeros
  }

 private:
  void Add(const std::string& name, int rows, int columns = 0) {
    const uint64_t begin = num_bytes_;
    num_bytes_ += uint64_t{4} * static_cast<uint64_t>(rows * (columns == 0 ? 1 : columns));
    entries_ += (entries_.empty() ? "\"" : ",\"") + name + R"(":{"dtype":"F32","shape":[)" +
                std::to_string(rows) + (columns == 0 ? "" : "," + std::to_string(columns)) +
                R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(num_bytes_) +
                "]}";
  }
  std::string entries_;
  uint64_t num_bytes_ = 0;
};

inline void MakeTinyModelFolder(const std::string& folder, int vocabulary = kTinyVocabulary) {
  const std::string golden = std::string(TITAN_SOURCE_DIR) + "/tests/golden";
  std::filesystem::create_directories(folder);
  TinyWeights(vocabulary).Write(folder + "/model.safetensors");
  std::filesystem::copy_file(golden + "/tokenizer/tiny_bpe.tokenizer.json",
                             folder + "/tokenizer.json");
  std::ifstream in(golden + "/model/tiny/llama_gqa_untied/config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  const std::string said = "\"vocab_size\": 256";
  const size_t at = config.find(said);
  if (at != std::string::npos) {
    config.replace(at, said.size(), "\"vocab_size\": " + std::to_string(vocabulary));
  }
  std::ofstream(folder + "/config.json") << config;
}

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_TINY_MODEL_FOLDER_H_
