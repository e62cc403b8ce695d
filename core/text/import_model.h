// SPDX-License-Identifier: Apache-2.0
//
// ImportModel: a model that somebody points at, opened and checked in full: the weights as a
// ModelSource, everything else as a ModelBundle in Hugging Face form. Any thread.
#ifndef TITAN_CORE_TEXT_IMPORT_MODEL_H_
#define TITAN_CORE_TEXT_IMPORT_MODEL_H_

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/formats/model_bundle.h"
#include "core/formats/model_source.h"

namespace titan::text {

struct ImportOptions {
  // The tokenizer and the chat template are not looked at and not imported: for weights whose
  // tokenizer is not covered. Such a model can be trained on token ids and exported, not chatted
  // with.
  bool without_tokenizer = false;
};

struct ImportedModel {
  std::unique_ptr<formats::ModelSource> source;  // tensors; maps the files while it lives
  formats::ModelBundle bundle;
};

// path: a GGUF file, a folder in Hugging Face layout, or a folder that holds one GGUF file; told
// apart by what they hold, not by their names. The tokenizer (if there is one) has been loaded, a
// GGUF's written as tokenizer.json, and the chat template parsed; the tokenizer's ids fit the
// model's vocabulary. The bundle's texts are those that an export writes: exported and imported
// again it is equal. The values of the tensors are checked when they are read. NotFound,
// InvalidArgument, Unimplemented: file and field first, as OpenModelSource, Tokenizer::FromMaterial
// and ChatTemplate::Parse.
StatusOr<ImportedModel> ImportModel(const std::string& path, const ImportOptions& options = {});

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_IMPORT_MODEL_H_
