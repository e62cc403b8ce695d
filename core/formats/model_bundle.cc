// SPDX-License-Identifier: Apache-2.0
#include "core/formats/model_bundle.h"

#include <fmt/format.h>

#include <utility>

#include "core/formats/json.h"

namespace titan::formats {
namespace {

constexpr int64_t kFormat = 1;

// The default template of a value of "chat_template".
StatusOr<std::string> DefaultTemplate(const Json& value, std::string_view where) {
  if (value.is_null()) return std::string();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    for (const Json& entry : value) {
      if (!entry.is_object()) continue;
      const JsonFields fields(entry, fmt::format("{}: chat_template", where));
      TITAN_ASSIGN_OR_RETURN(const std::string name, fields.String("name"));
      if (name == "default") return fields.String("template");
    }
    return std::string();
  }
  return InvalidArgument(
      fmt::format("{}: chat_template: must be a text or a list of named templates", where));
}

StatusOr<Json> ParseObject(std::string_view text, std::string_view where) {
  TITAN_ASSIGN_OR_RETURN(Json value, ParseJson(text, where));
  if (!value.is_object()) return InvalidArgument(fmt::format("{}: must be an object", where));
  return value;
}

// Texts inside come from parsers that refuse what is not UTF-8; a template given as a file of its
// own does not, and must not throw here.
std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string GenerationConfigOf(const ModelConfig& config) {
  Json root = {{"do_sample", false}};
  if (config.bos_token_id >= 0) root["bos_token_id"] = config.bos_token_id;
  if (config.eos_token_ids.size() == 1) root["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) root["eos_token_id"] = config.eos_token_ids;
  return Dump(root, 2) + "\n";
}

}  // namespace

std::string EncodeBundle(const ModelBundle& bundle) {
  const Json root = {{"format", kFormat},
                     {"config", ToHfConfigJson(bundle.config)},
                     {"generation_config", bundle.generation_config_json},
                     {"tokenizer", bundle.tokenizer_json},
                     {"tokenizer_config", bundle.tokenizer_config_json},
                     {"chat_template", bundle.chat_template}};
  return Dump(root, -1);
}

StatusOr<ModelBundle> DecodeBundle(std::string_view text, std::string_view where) {
  TITAN_ASSIGN_OR_RETURN(const Json root, ParseObject(text, where));
  const JsonFields fields(root, std::string(where));
  TITAN_ASSIGN_OR_RETURN(const int64_t format, fields.Int("format", 0, INT64_MAX));
  if (format != kFormat) {
    return fields.Refuse("format", fmt::format("{} is not covered ({})", format, kFormat));
  }
  ModelBundle bundle;
  TITAN_ASSIGN_OR_RETURN(const std::string config, fields.String("config"));
  TITAN_ASSIGN_OR_RETURN(bundle.config, ParseHfConfig(config, fmt::format("{}: config", where)));
  const std::pair<const char*, std::string*> texts[] = {
      {"generation_config", &bundle.generation_config_json},
      {"tokenizer", &bundle.tokenizer_json},
      {"tokenizer_config", &bundle.tokenizer_config_json},
      {"chat_template", &bundle.chat_template}};
  for (const auto& [field, value] : texts) {
    TITAN_ASSIGN_OR_RETURN(*value, fields.String(field));
  }
  return bundle;
}

TokenizerMaterial TokenizerMaterialOf(const ModelBundle& bundle) {
  TokenizerMaterial material;
  material.tokenizer_json = bundle.tokenizer_json;
  material.tokenizer_config_json = bundle.tokenizer_config_json;
  return material;
}

StatusOr<FolderTexts> FolderTextsOf(const ModelBundle& bundle) {
  TITAN_RETURN_IF_ERROR(ValidateModelConfig(bundle.config));
  FolderTexts texts;
  texts.config_json = ToHfConfigJson(bundle.config);
  texts.generation_config_json = bundle.generation_config_json;
  if (texts.generation_config_json.empty()) {
    texts.generation_config_json = GenerationConfigOf(bundle.config);
  } else {
    TITAN_RETURN_IF_ERROR(
        ParseObject(texts.generation_config_json, "generation_config.json").status());
  }
  texts.tokenizer_json = bundle.tokenizer_json;
  texts.tokenizer_config_json = bundle.tokenizer_config_json;
  if (bundle.chat_template.empty()) return texts;
  Json config = Json::object();
  if (!texts.tokenizer_config_json.empty()) {
    TITAN_ASSIGN_OR_RETURN(config,
                           ParseObject(texts.tokenizer_config_json, "tokenizer_config.json"));
  }
  const auto it = config.find("chat_template");
  if (it != config.end()) {
    TITAN_ASSIGN_OR_RETURN(const std::string present,
                           DefaultTemplate(*it, "tokenizer_config.json"));
    if (present == bundle.chat_template) return texts;
  }
  config["chat_template"] = bundle.chat_template;
  texts.tokenizer_config_json = Dump(config, 2) + "\n";
  return texts;
}

StatusOr<std::string> ChatTemplateOf(std::string_view tokenizer_config_json,
                                     std::string_view where) {
  TITAN_ASSIGN_OR_RETURN(const Json config, ParseObject(tokenizer_config_json, where));
  const auto it = config.find("chat_template");
  if (it == config.end()) return std::string();
  return DefaultTemplate(*it, where);
}

}  // namespace titan::formats
