// SPDX-License-Identifier: Apache-2.0
#include "core/formats/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/formats/tensor_set.h"

namespace titan::formats {
namespace {

struct NamePair {
  std::string_view hf;
  std::string_view gguf;
};

constexpr std::array<NamePair, 3> kOuterNames = {{
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
}};
constexpr std::array<NamePair, 11> kLayerNames = {{
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
}};
constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr int64_t kInt32Max = INT32_MAX;
constexpr char kRopeFrequencies[] = "rope_freqs.weight";

Status RefuseKey(const GgufFile& file, std::string_view key, std::string_view problem) {
  return Unimplemented(fmt::format("{}: key {}: {}", file.path(), key, problem));
}

// Keys that change the arithmetic unless they have one of two neutral values.
struct UncoveredKey {
  const char* leaf;
  double neutral, also_neutral;
};
constexpr UncoveredKey kUncoveredKeys[] = {
    {".rope.scale_linear", 0, 1},
    {".attention.scale", 0, 0},
    {".attention.clamp_kqv", 0, 0},
    {".logit_scale", 0, 1},
    {".embedding_scale", 0, 1},
    {".residual_scale", 0, 1},
    {".attention.sliding_window", 0, 0},
    {".expert_count", 0, 0},
    {".rope.scaling.attn_factor", 1, 1},
    {".rope.scaling.yarn_log_multiplier", 0, 0},
    {".rope.scaling.yarn_ext_factor", 1, 1},
    {".rope.scaling.yarn_attn_factor", 1, 1},
    // What the yarn rule is computed with.
    {".rope.scaling.yarn_beta_fast", 32, 32},
    {".rope.scaling.yarn_beta_slow", 1, 1},
};

Status RefuseUncovered(const GgufFile& file, const std::string& arch) {
  for (const auto& [leaf, neutral, also_neutral] : kUncoveredKeys) {
    const std::string key = arch + leaf;
    if (!file.HasKey(key)) continue;
    const auto integer = file.Int(key, 0, kInt32Max);
    const auto number = file.Number(key);
    if (!integer.ok() && !number.ok()) return RefuseKey(file, key, "is no number");
    const double value = integer.ok() ? static_cast<double>(*integer) : *number;
    if (value == neutral || value == also_neutral) continue;
    return RefuseKey(file, key,
                     fmt::format("{} is not covered, convert the model without it", value));
  }
  return OkStatus();
}

// Kinds that have keys of their own; that of Llama 3 is a tensor.
Status ReadRopeScaling(const GgufFile& file, const std::string& arch, ModelConfig* c) {
  const std::string key = arch + ".rope.scaling.type";
  TITAN_ASSIGN_OR_RETURN(const std::string kind, file.StringOr(key, "none"));
  const std::string factor_key = arch + ".rope.scaling.factor";
  if (kind == "none") {
    if (!file.HasKey(factor_key)) return OkStatus();
    TITAN_ASSIGN_OR_RETURN(const double factor, file.Number(factor_key));
    if (factor == 0 || factor == 1) return OkStatus();
    return RefuseKey(file, factor_key, "is given without " + key);
  }
  if (kind != "linear" && kind != "yarn") {
    return RefuseKey(file, key, fmt::format("\"{}\" is not covered (none, linear, yarn)", kind));
  }
  RopeScaling rope;
  rope.kind = kind == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kYarn;
  TITAN_ASSIGN_OR_RETURN(rope.factor, file.Number(factor_key));
  if (rope.kind == RopeScaling::Kind::kYarn) {
    TITAN_ASSIGN_OR_RETURN(const int64_t original,
                           file.Int(arch + ".rope.scaling.original_context_length", 1, kInt32Max));
    rope.original_max_position_embeddings = static_cast<int32_t>(original);
  }
  c->rope_scaling = rope;
  return OkStatus();
}

// What a rotary frequency is divided by under the llama3 rule.
double Llama3Divisor(const RopeScaling& rope, double frequency) {
  const double wavelength = 2 * 3.141592653589793 / frequency;
  const double original = rope.original_max_position_embeddings;
  if (wavelength < original / rope.high_freq_factor) return 1;
  if (wavelength > original / rope.low_freq_factor) return rope.factor;
  const double kept = (original / wavelength - rope.low_freq_factor) /
                      (rope.high_freq_factor - rope.low_freq_factor);
  return 1 / ((1 - kept) / rope.factor + kept);
}

// Files of Llama 3 carry the divisors as a tensor instead of the rule's parameters. The rule is
// recognised by its divisors: the largest is the factor, the rest is the same for all of Llama 3.
Status ReadRopeFrequencies(const GgufFile& file, ModelConfig* c) {
  const GgufTensor* tensor = file.FindTensor(kRopeFrequencies);
  if (tensor == nullptr) return OkStatus();
  const std::string where = fmt::format("{}: tensor {}", file.path(), kRopeFrequencies);
  if (c->rope_scaling.kind != RopeScaling::Kind::kNone) {
    return InvalidArgument(where + ": stands beside another rope scaling");
  }
  if (tensor->shape != std::vector<int64_t>{c->head_dim / 2} || tensor->type != StoredType::kF32) {
    return InvalidArgument(fmt::format("{}: must be F32 with {} elements", where, c->head_dim / 2));
  }
  std::vector<float> divisors(static_cast<size_t>(c->head_dim / 2));
  TITAN_RETURN_IF_ERROR(file.ConvertTensor(*tensor, divisors));
  RopeScaling rope;
  rope.kind = RopeScaling::Kind::kLlama3;
  rope.factor = *std::max_element(divisors.begin(), divisors.end());
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_position_embeddings = 8192;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double frequency = std::pow(c->rope_theta, -2.0 * static_cast<double>(i) / c->head_dim);
    const double want = Llama3Divisor(rope, frequency);
    if (std::abs(divisors[i] - want) <= 1e-4 * want) continue;
    return Unimplemented(
        fmt::format("{}: element {} is {}, not {} as Llama 3 scales with factor {} (low 1, high 4, "
                    "context 8192)",
                    where, i, divisors[i], want, rope.factor));
  }
  c->rope_scaling = rope;
  return OkStatus();
}

Status ReadSizes(const GgufFile& file, const std::string& arch, ModelConfig* c) {
  const auto read = [&](const char* leaf, int32_t* value) -> Status {
    TITAN_ASSIGN_OR_RETURN(const int64_t number, file.Int(arch + leaf, 1, kInt32Max));
    *value = static_cast<int32_t>(number);
    return OkStatus();
  };
  TITAN_RETURN_IF_ERROR(read(".embedding_length", &c->hidden_size));
  TITAN_RETURN_IF_ERROR(read(".block_count", &c->num_layers));
  TITAN_RETURN_IF_ERROR(read(".attention.head_count", &c->num_heads));
  TITAN_RETURN_IF_ERROR(read(".feed_forward_length", &c->intermediate_size));
  TITAN_RETURN_IF_ERROR(read(".context_length", &c->max_position_embeddings));
  c->num_kv_heads = c->num_heads;
  if (file.HasKey(arch + ".attention.head_count_kv")) {
    TITAN_RETURN_IF_ERROR(read(".attention.head_count_kv", &c->num_kv_heads));
  }
  const std::string key_length = arch + ".attention.key_length";
  if (file.HasKey(key_length)) {
    TITAN_RETURN_IF_ERROR(read(".attention.key_length", &c->head_dim));
  } else if (c->hidden_size % c->num_heads == 0) {
    c->head_dim = c->hidden_size / c->num_heads;
  } else {
    return InvalidArgument(
        fmt::format("{}: key {}: is missing, and {} heads do not divide width {}", file.path(),
                    key_length, c->num_heads, c->hidden_size));
  }
  for (const char* leaf : {".attention.value_length", ".rope.dimension_count"}) {
    TITAN_ASSIGN_OR_RETURN(const int64_t width, file.IntOr(arch + leaf, 0, kInt32Max, c->head_dim));
    if (width != c->head_dim) {
      return RefuseKey(file, arch + leaf,
                       fmt::format("{} differs from the head width {}", width, c->head_dim));
    }
  }
  return OkStatus();
}

Status ReadVocabulary(const GgufFile& file, const std::string& arch, ModelConfig* c) {
  const GgufTensor* table = file.FindTensor("token_embd.weight");
  if (table == nullptr) {
    return InvalidArgument(file.path() + ": tensor token_embd.weight is missing");
  }
  if (table->shape.size() != 2 || table->shape[0] > kInt32Max) {
    return InvalidArgument(file.path() + ": tensor token_embd.weight: is not a table of tokens");
  }
  c->vocab_size = static_cast<int32_t>(table->shape[0]);
  const std::string key = arch + ".vocab_size";
  TITAN_ASSIGN_OR_RETURN(const int64_t vocab, file.IntOr(key, 1, kInt32Max, c->vocab_size));
  if (vocab != c->vocab_size) {
    return InvalidArgument(
        fmt::format("{}: key {}: {} differs from the {} rows of token_embd.weight", file.path(),
                    key, vocab, c->vocab_size));
  }
  TITAN_ASSIGN_OR_RETURN(const int64_t bos,
                         file.IntOr("tokenizer.ggml.bos_token_id", 0, kInt32Max, -1));
  c->bos_token_id = static_cast<int32_t>(bos);
  for (const char* name : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    TITAN_ASSIGN_OR_RETURN(const int64_t id, file.IntOr(name, 0, kInt32Max, -1));
    std::vector<int32_t>& ids = c->eos_token_ids;
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return OkStatus();
}

class GgufModel : public ModelSource {
 public:
  explicit GgufModel(GgufFile file) : file_(std::move(file)) {}

  Status Load() {
    TITAN_ASSIGN_OR_RETURN(config_, ReadGgufConfig(file_));
    tensors_ = CanonicalTensors(config_);
    std::map<std::string, std::vector<int64_t>, std::less<>> found;
    for (const GgufTensor& tensor : file_.tensors()) {
      if (tensor.name == kRopeFrequencies) continue;  // part of the configuration
      TITAN_RETURN_IF_ERROR(file_.CheckConvertible(tensor));
      found.emplace(tensor.name, tensor.shape);
    }
    TITAN_RETURN_IF_ERROR(CheckTensorSet(path(), tensors_, found,
                                         [](std::string_view name) { return GgufNameOf(name); }));
    TITAN_ASSIGN_OR_RETURN(tokenizer_.gguf, ReadGgufTokenizer(file_));
    TITAN_ASSIGN_OR_RETURN(chat_template_, file_.StringOr("tokenizer.chat_template", ""));
    return OkStatus();
  }

  const std::string& path() const override { return file_.path(); }
  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  const TokenizerMaterial& tokenizer() const override { return tokenizer_; }
  const std::string& chat_template() const override { return chat_template_; }
  const std::string& generation_config() const override { return generation_config_; }

  Status ReadTensorF32(std::string_view name, std::span<float> out) const override {
    const TensorSpec* spec = FindTensorSpec(tensors_, name);
    if (spec == nullptr) return NotFound(fmt::format("{}: no tensor {}", path(), name));
    TITAN_RETURN_IF_ERROR(CheckSpan(*spec, out.size()));
    const GgufTensor* tensor = file_.FindTensor(GgufNameOf(name));
    TITAN_CHECK(tensor != nullptr);
    if (HasInterleavedRows(config_.family, name)) {
      ReadInterleaved(*tensor, out);
    } else {
      TITAN_RETURN_IF_ERROR(file_.ConvertTensor(*tensor, out));
    }
    const Status clean = CleanWeights(name, out);
    return clean.ok() ? clean : Annotate(clean, path());
  }

 private:
  // A row of a bias is one element, which is less than a block of a quantised type: convert all,
  // then move elements. A row of a weight is whole blocks: convert each to its place.
  void ReadInterleaved(const GgufTensor& tensor, std::span<float> out) const {
    const int64_t rows = tensor.shape[0];
    if (tensor.shape.size() == 1) {
      std::vector<float> stored(out.size());
      ConvertToF32(*tensor.type, tensor.bytes, stored);
      for (int64_t r = 0; r < rows; ++r) {
        out[static_cast<size_t>(r)] =
            stored[static_cast<size_t>(InterleavedRowOf(r, config_.head_dim))];
      }
      return;
    }
    const size_t width = static_cast<size_t>(tensor.shape[1]);
    const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(rows);
    for (int64_t r = 0; r < rows; ++r) {
      const size_t stored = static_cast<size_t>(InterleavedRowOf(r, config_.head_dim));
      ConvertToF32(*tensor.type, tensor.bytes.subspan(stored * row_bytes, row_bytes),
                   out.subspan(static_cast<size_t>(r) * width, width));
    }
  }

  GgufFile file_;
  ModelConfig config_;
  std::vector<TensorSpec> tensors_;
  TokenizerMaterial tokenizer_;
  std::string chat_template_;
  const std::string generation_config_;  // the format has none
};

}  // namespace

std::string GgufNameOf(std::string_view hf_name) {
  const size_t dot = hf_name.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view suffix = hf_name.substr(dot);  // ".weight" or ".bias"
  std::string_view stem = hf_name.substr(0, dot);
  for (const NamePair& pair : kOuterNames) {
    if (stem == pair.hf) return fmt::format("{}{}", pair.gguf, suffix);
  }
  if (!stem.starts_with(kLayerPrefix)) return "";
  stem.remove_prefix(kLayerPrefix.size());
  const size_t end = stem.find('.');
  if (end == std::string_view::npos) return "";
  for (const NamePair& pair : kLayerNames) {
    if (stem.substr(end + 1) == pair.hf) {
      return fmt::format("blk.{}.{}{}", stem.substr(0, end), pair.gguf, suffix);
    }
  }
  return "";
}

bool HasInterleavedRows(std::string_view family, std::string_view hf_name) {
  if (family != "llama") return false;
  return hf_name.find(".self_attn.q_proj.") != std::string_view::npos ||
         hf_name.find(".self_attn.k_proj.") != std::string_view::npos;
}

int64_t InterleavedRowOf(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim;
  const int64_t in_head = row % head_dim;
  const int64_t half = head_dim / 2;
  return head * head_dim + 2 * (in_head % half) + in_head / half;
}

StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  ModelConfig c;
  TITAN_ASSIGN_OR_RETURN(const std::string arch, file.String("general.architecture"));
  if (arch != "llama" && arch != "qwen2" && arch != "qwen3") {
    return RefuseKey(file, "general.architecture",
                     fmt::format("\"{}\" is not covered (llama, qwen2, qwen3)", arch));
  }
  c.family = arch;
  TITAN_RETURN_IF_ERROR(RefuseUncovered(file, arch));
  TITAN_RETURN_IF_ERROR(ReadSizes(file, arch, &c));
  TITAN_RETURN_IF_ERROR(ReadVocabulary(file, arch, &c));
  TITAN_ASSIGN_OR_RETURN(const double eps, file.Number(arch + ".attention.layer_norm_rms_epsilon"));
  c.rms_norm_eps = static_cast<float>(eps);
  c.rope_theta = 10000;  // what the format means by a missing key
  if (file.HasKey(arch + ".rope.freq_base")) {
    TITAN_ASSIGN_OR_RETURN(c.rope_theta, file.Number(arch + ".rope.freq_base"));
  }
  TITAN_RETURN_IF_ERROR(ReadRopeScaling(file, arch, &c));
  TITAN_RETURN_IF_ERROR(ReadRopeFrequencies(file, &c));
  c.tie_embeddings = file.FindTensor("output.weight") == nullptr;
  c.qkv_bias = file.FindTensor("blk.0.attn_q.bias") != nullptr;
  c.o_bias = file.FindTensor("blk.0.attn_output.bias") != nullptr;
  c.mlp_bias = file.FindTensor("blk.0.ffn_gate.bias") != nullptr;
  c.qk_norm = arch == "qwen3";
  const Status valid = ValidateModelConfig(c);
  if (!valid.ok()) return Annotate(valid, file.path());
  return c;
}

StatusOr<std::optional<GgufTokenizer>> ReadGgufTokenizer(const GgufFile& file) {
  if (!file.HasKey("tokenizer.ggml.model")) return std::optional<GgufTokenizer>();
  GgufTokenizer t;
  TITAN_ASSIGN_OR_RETURN(t.model, file.String("tokenizer.ggml.model"));
  TITAN_ASSIGN_OR_RETURN(t.pre, file.StringOr("tokenizer.ggml.pre", ""));
  TITAN_ASSIGN_OR_RETURN(t.tokens, file.Strings("tokenizer.ggml.tokens"));
  if (file.HasKey("tokenizer.ggml.token_type")) {
    TITAN_ASSIGN_OR_RETURN(t.token_types, file.Int32s("tokenizer.ggml.token_type"));
    if (t.token_types.size() != t.tokens.size()) {
      return InvalidArgument(
          fmt::format("{}: key tokenizer.ggml.token_type: {} entries for {} tokens", file.path(),
                      t.token_types.size(), t.tokens.size()));
    }
  } else {
    t.token_types.assign(t.tokens.size(), 1);
  }
  if (file.HasKey("tokenizer.ggml.merges")) {
    TITAN_ASSIGN_OR_RETURN(t.merges, file.Strings("tokenizer.ggml.merges"));
  }
  const struct {
    const char* key;
    int32_t* id;
  } ids[] = {{"tokenizer.ggml.bos_token_id", &t.bos_id},
             {"tokenizer.ggml.eos_token_id", &t.eos_id},
             {"tokenizer.ggml.unknown_token_id", &t.unk_id},
             {"tokenizer.ggml.padding_token_id", &t.pad_id}};
  const int64_t last = static_cast<int64_t>(t.tokens.size()) - 1;
  for (const auto& [key, id] : ids) {
    TITAN_ASSIGN_OR_RETURN(const int64_t value, file.IntOr(key, 0, last, -1));
    *id = static_cast<int32_t>(value);
  }
  if (t.model == "llama") {
    TITAN_ASSIGN_OR_RETURN(t.scores, file.Floats("tokenizer.ggml.scores"));
    if (t.scores.size() != t.tokens.size()) {
      return InvalidArgument(fmt::format("{}: key tokenizer.ggml.scores: {} entries for {} tokens",
                                         file.path(), t.scores.size(), t.tokens.size()));
    }
    TITAN_ASSIGN_OR_RETURN(t.add_space_prefix,
                           file.BoolOr("tokenizer.ggml.add_space_prefix", true));
    const char* collapse = "tokenizer.ggml.remove_extra_whitespaces";
    TITAN_ASSIGN_OR_RETURN(const bool collapses, file.BoolOr(collapse, false));
    if (collapses) return RefuseKey(file, collapse, "only false is covered");
  }
  // What the format means by a missing key depends on the kind of the vocabulary.
  const bool begins =
      t.model == "llama" || t.pre == "llama-bpe" || t.pre == "llama3" || t.pre == "llama-v3";
  TITAN_ASSIGN_OR_RETURN(t.add_bos,
                         file.BoolOr("tokenizer.ggml.add_bos_token", begins && t.bos_id >= 0));
  TITAN_ASSIGN_OR_RETURN(t.add_eos, file.BoolOr("tokenizer.ggml.add_eos_token", false));
  return std::optional<GgufTokenizer>(std::move(t));
}

StatusOr<std::unique_ptr<ModelSource>> OpenGgufModel(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  auto model = std::make_unique<GgufModel>(std::move(file));
  TITAN_RETURN_IF_ERROR(model->Load());
  return std::unique_ptr<ModelSource>(std::move(model));
}

}  // namespace titan::formats
