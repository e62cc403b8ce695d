// SPDX-License-Identifier: Apache-2.0
//
// ModelBundle: everything of a model but its weights, in Hugging Face form whatever the files it
// came from. What a version of the weight store must carry so that it can be exported, served as
// chat and continued without the files that it was imported from. Values and pure functions, any
// thread.
#ifndef TITAN_CORE_FORMATS_MODEL_BUNDLE_H_
#define TITAN_CORE_FORMATS_MODEL_BUNDLE_H_

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/formats/model_source.h"

namespace titan::formats {

struct ModelBundle {
  ModelConfig config;
  std::string generation_config_json;  // "" = none; export then writes one out of config
  std::string tokenizer_json;          // "" = the model comes without a tokenizer
  std::string tokenizer_config_json;   // "" = none
  std::string chat_template;           // "" = none

  friend bool operator==(const ModelBundle&, const ModelBundle&) = default;
};

// One JSON text, equal for equal bundles, and back. InvalidArgument, Unimplemented (`where` stands
// first): the field that is not what EncodeBundle writes.
std::string EncodeBundle(const ModelBundle& bundle);
StatusOr<ModelBundle> DecodeBundle(std::string_view text, std::string_view where);

// What core/text makes a tokenizer of.
TokenizerMaterial TokenizerMaterialOf(const ModelBundle& bundle);

// The texts of an exported folder. The chat template stands in tokenizer_config.json, which every
// version of transformers reads; a list of named templates whose default it is stays a list.
// InvalidArgument: tokenizer_config_json or generation_config_json is not a JSON object.
struct FolderTexts {
  std::string config_json;
  std::string generation_config_json;
  std::string tokenizer_json;         // "" = no such file
  std::string tokenizer_config_json;  // "" = no such file
};
StatusOr<FolderTexts> FolderTextsOf(const ModelBundle& bundle);

// The template of a value of "chat_template" in tokenizer_config.json: a text, or the one called
// "default" of a list of {"name", "template"}; "" if there is none. `where` stands first in
// messages.
StatusOr<std::string> ChatTemplateOf(std::string_view tokenizer_config_json,
                                     std::string_view where);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_MODEL_BUNDLE_H_
