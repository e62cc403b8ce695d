// SPDX-License-Identifier: Apache-2.0
#include "core/formats/hf_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <utility>

#include "core/base/check.h"
#include "core/formats/fused_experts.h"
#include "core/formats/json.h"
#include "core/formats/model_bundle.h"
#include "core/formats/tensor_set.h"

namespace titan::formats {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr char kHead[] = "lm_head.weight";
constexpr char kTable[] = "model.embed_tokens.weight";

// "" if there is no such file.
StatusOr<std::string> ReadOptional(const std::string& path, size_t max_bytes) {
  StatusOr<std::string> text = ReadSmallFile(path, max_bytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return std::string();
  return text;
}

// Buffers that old exporters stored although they follow from the configuration.
bool IsDerived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

class HfFolder : public ModelSource {
 public:
  explicit HfFolder(std::string folder) : folder_(std::move(folder)) {}

  Status Load() {
    const std::string config_path = PathOf("config.json");
    TITAN_ASSIGN_OR_RETURN(const std::string config, ReadSmallFile(config_path, kMaxConfigBytes));
    TITAN_ASSIGN_OR_RETURN(config_, ParseHfConfig(config, config_path));
    tensors_ = CanonicalTensors(config_);
    TITAN_RETURN_IF_ERROR(OpenWeights());
    TITAN_RETURN_IF_ERROR(CheckWeights());
    TITAN_ASSIGN_OR_RETURN(tokenizer_.tokenizer_json,
                           ReadOptional(PathOf("tokenizer.json"), kMaxTokenizerBytes));
    TITAN_ASSIGN_OR_RETURN(tokenizer_.tokenizer_config_json,
                           ReadOptional(PathOf("tokenizer_config.json"), kMaxConfigBytes));
    TITAN_RETURN_IF_ERROR(ReadGenerationConfig());
    return ReadChatTemplate();
  }

  const std::string& path() const override { return folder_; }
  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  const TokenizerMaterial& tokenizer() const override { return tokenizer_; }
  const std::string& chat_template() const override { return chat_template_; }
  const std::string& generation_config() const override { return generation_config_; }

  Status ReadTensorF32(std::string_view name, std::span<float> out) const override {
    const TensorSpec* spec = FindTensorSpec(tensors_, name);
    if (spec == nullptr) return NotFound(fmt::format("{}: no tensor {}", folder_, name));
    TITAN_RETURN_IF_ERROR(CheckSpan(*spec, out.size()));
    const std::optional<FusedPlace> place = FusedPlaceOf(config_, name);
    const std::string_view stored = place.has_value() ? std::string_view(place->tensor) : name;
    const SafetensorsFile& file = files_[file_of_.find(stored)->second];
    if (place.has_value()) {
      ReadFused(file.tensors().find(stored)->second, *place, out);
    } else {
      TITAN_RETURN_IF_ERROR(file.ConvertTensor(name, out));
    }
    const Status clean = CleanWeights(name, out);
    return clean.ok() ? clean : Annotate(clean, file.path());
  }

 private:
  // Its elements lie column after column.
  static void ReadFused(const SafetensorsTensor& tensor, const FusedPlace& place,
                        std::span<float> out) {
    const size_t element = tensor.bytes.size() / static_cast<size_t>(tensor.num_elements());
    std::vector<float> column(static_cast<size_t>((place.rows - 1) * place.row_step + 1));
    for (int64_t k = 0; k < place.columns; ++k) {
      const int64_t begin = place.block_begin + place.first + k * place.column_step;
      ConvertToF32(
          *tensor.type,
          tensor.bytes.subspan(static_cast<size_t>(begin) * element, column.size() * element),
          column);
      for (int64_t n = 0; n < place.rows; ++n) {
        out[static_cast<size_t>(n * place.columns + k)] =
            column[static_cast<size_t>(n * place.row_step)];
      }
    }
  }

  std::string PathOf(const std::string& leaf) const {
    return (std::filesystem::path(folder_) / leaf).string();
  }

  Status OpenWeights() {
    const std::string single = PathOf("model.safetensors");
    const std::string index = PathOf("model.safetensors.index.json");
    std::error_code ignored;
    if (std::filesystem::exists(single, ignored)) {
      TITAN_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
      for (const auto& [name, tensor] : file.tensors()) file_of_[name] = 0;
      files_.push_back(std::move(file));
      return OkStatus();
    }
    if (std::filesystem::exists(index, ignored)) return OpenShards(index);
    return NotFound(
        fmt::format("{}: neither model.safetensors nor model.safetensors.index.json "
                    "(other weight formats are not read)",
                    folder_));
  }

  Status OpenShards(const std::string& index_path) {
    TITAN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(index_path, kMaxTokenizerBytes));
    TITAN_ASSIGN_OR_RETURN(const Json index, ParseJson(text, index_path));
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      return InvalidArgument(index_path + ": weight_map: must be an object");
    }
    std::map<std::string, size_t> shards;
    for (const auto& [name, value] : index["weight_map"].items()) {
      const std::string field = fmt::format("{}: weight_map: {}", index_path, name);
      if (!value.is_string()) return InvalidArgument(field + ": must be a file name");
      const std::string leaf = value.get<std::string>();
      if (leaf.empty() || leaf.find('/') != std::string::npos ||
          leaf.find('\0') != std::string::npos) {
        return InvalidArgument(field + ": must be the name of a file in the same folder");
      }
      auto shard = shards.find(leaf);
      if (shard == shards.end()) {
        StatusOr<SafetensorsFile> file = SafetensorsFile::Open(PathOf(leaf));
        if (!file.ok()) return Annotate(file.status(), field);
        shard = shards.emplace(leaf, files_.size()).first;
        files_.push_back(*std::move(file));
      }
      if (!files_[shard->second].tensors().contains(name)) {
        return InvalidArgument(fmt::format("{}: {} does not hold it", field, leaf));
      }
      file_of_[name] = shard->second;
    }
    for (size_t i = 0; i < files_.size(); ++i) {
      for (const auto& [name, tensor] : files_[i].tensors()) {
        const auto it = file_of_.find(name);
        if (it == file_of_.end() || it->second != i) {
          return InvalidArgument(fmt::format("{}: tensor {}: the index does not place it here",
                                             files_[i].path(), name));
        }
      }
    }
    return OkStatus();
  }

  Status CheckWeights() {
    TensorShapes found;
    for (const auto& [name, file] : file_of_) {
      if (IsDerived(name)) continue;
      if (config_.tie_embeddings && name == kHead) continue;
      const SafetensorsTensor& tensor = files_[file].tensors().find(name)->second;
      if (!tensor.type.has_value()) {
        const bool mxfp4 =
            config_.is_gpt_oss() && (name.ends_with("_blocks") || name.ends_with("_scales"));
        return Unimplemented(
            fmt::format("{}: tensor {}: {}dtype {} has no conversion (F32, F16, BF16){}",
                        files_[file].path(), name, mxfp4 ? "MXFP4, " : "", tensor.dtype,
                        mxfp4 ? "; save the weights dequantised, as BF16" : ""));
      }
      found.emplace(name, tensor.shape);
    }
    TITAN_RETURN_IF_ERROR(CheckTensorSet(folder_, FileTensors(config_), found,
                                         [](std::string_view name) { return std::string(name); }));
    if (config_.tie_embeddings && file_of_.contains(kHead)) return CheckTiedHead();
    return OkStatus();
  }

  // A tied model may store its head too, if it is the embedding table.
  Status CheckTiedHead() const {
    const SafetensorsTensor& head =
        files_[file_of_.find(kHead)->second].tensors().find(kHead)->second;
    const SafetensorsTensor& table =
        files_[file_of_.find(kTable)->second].tensors().find(kTable)->second;
    if (head.dtype == table.dtype && head.shape == table.shape &&
        std::equal(head.bytes.begin(), head.bytes.end(), table.bytes.begin(), table.bytes.end())) {
      return OkStatus();
    }
    return InvalidArgument(
        fmt::format("{}: tensor {}: differs from {} although tie_word_embeddings is true", folder_,
                    kHead, kTable));
  }

  Status ReadGenerationConfig() {
    const std::string path = PathOf("generation_config.json");
    TITAN_ASSIGN_OR_RETURN(generation_config_, ReadOptional(path, kMaxConfigBytes));
    if (generation_config_.empty()) return OkStatus();
    TITAN_ASSIGN_OR_RETURN(const Json value, ParseJson(generation_config_, path));
    return value.is_object() ? OkStatus() : InvalidArgument(path + ": must be an object");
  }

  Status ReadChatTemplate() {
    TITAN_ASSIGN_OR_RETURN(chat_template_,
                           ReadOptional(PathOf("chat_template.jinja"), kMaxConfigBytes));
    if (!chat_template_.empty()) return OkStatus();
    if (tokenizer_.tokenizer_config_json.empty()) return OkStatus();
    TITAN_ASSIGN_OR_RETURN(chat_template_, ChatTemplateOf(tokenizer_.tokenizer_config_json,
                                                          PathOf("tokenizer_config.json")));
    return OkStatus();
  }

  std::string folder_;
  ModelConfig config_;
  std::vector<TensorSpec> tensors_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;  // tensor name -> index in files_
  TokenizerMaterial tokenizer_;
  std::string chat_template_;
  std::string generation_config_;
};

}  // namespace

StatusOr<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& folder) {
  auto model = std::make_unique<HfFolder>(folder);
  TITAN_RETURN_IF_ERROR(model->Load());
  return std::unique_ptr<ModelSource>(std::move(model));
}

}  // namespace titan::formats
