// SPDX-License-Identifier: Apache-2.0
#include "core/text/import_model.h"

#include <fmt/format.h>

#include <utility>

#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "core/text/tokenizer_export.h"
#include "core/text/utf8.h"

namespace titan::text {

namespace {

// The texts as an export writes them, so that an exported model is imported as the same bundle.
Status Normalize(formats::ModelBundle& bundle, const std::string& where) {
  StatusOr<formats::FolderTexts> texts = formats::FolderTextsOf(bundle);
  if (!texts.ok()) return Annotate(texts.status(), where);
  bundle.generation_config_json = std::move(texts->generation_config_json);
  bundle.tokenizer_config_json = std::move(texts->tokenizer_config_json);
  return OkStatus();
}

}  // namespace

StatusOr<ImportedModel> ImportModel(const std::string& path, const ImportOptions& options) {
  ImportedModel model;
  TITAN_ASSIGN_OR_RETURN(model.source, formats::OpenModelSource(path));
  const std::string& where = model.source->path();
  formats::ModelBundle& bundle = model.bundle;
  bundle.config = model.source->config();
  bundle.generation_config_json = model.source->generation_config();
  if (options.without_tokenizer) {
    TITAN_RETURN_IF_ERROR(Normalize(bundle, where));
    return model;
  }
  bundle.chat_template = model.source->chat_template();
  if (!bundle.chat_template.empty()) {
    if (!IsValidUtf8(bundle.chat_template)) {
      return InvalidArgument(fmt::format("{}: chat template: is not UTF-8", where));
    }
    const auto parsed = ChatTemplate::Parse(bundle.chat_template);
    if (!parsed.ok()) return Annotate(parsed.status(), where);  // which says "chat template"
  }
  if (model.source->tokenizer().empty()) {
    TITAN_RETURN_IF_ERROR(Normalize(bundle, where));
    return model;
  }
  TITAN_ASSIGN_OR_RETURN(const formats::TokenizerMaterial material,
                         ToHfTokenizer(model.source->tokenizer(), where));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                         Tokenizer::FromMaterial(material, where));
  if (tokenizer->vocab_size() > bundle.config.vocab_size) {
    return InvalidArgument(
        fmt::format("{}: tokenizer: has ids up to {}, the model's vocab_size is {}", where,
                    tokenizer->vocab_size() - 1, bundle.config.vocab_size));
  }
  bundle.tokenizer_json = material.tokenizer_json;
  bundle.tokenizer_config_json = material.tokenizer_config_json;
  TITAN_RETURN_IF_ERROR(Normalize(bundle, where));
  return model;
}

}  // namespace titan::text
