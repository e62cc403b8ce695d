// SPDX-License-Identifier: Apache-2.0
//
// A GGUF's tokenizer in Hugging Face form, so that an exported model is complete. Pure function,
// any thread.
#ifndef TITAN_CORE_TEXT_TOKENIZER_EXPORT_H_
#define TITAN_CORE_TEXT_TOKENIZER_EXPORT_H_

#include <string_view>

#include "core/base/status.h"
#include "core/formats/model_source.h"

namespace titan::text {

// The material with tokenizer.json and tokenizer_config.json: as it is if it has them, else written
// from the GGUF keys. A tokenizer read from the result gives the same ids. Deterministic text.
// Errors as Tokenizer::FromMaterial, which the result has been through; Unimplemented also for a
// SentencePiece vocabulary whose scores make a piece that merges cannot, naming the piece.
StatusOr<formats::TokenizerMaterial> ToHfTokenizer(const formats::TokenizerMaterial& material,
                                                   std::string_view where);

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_TOKENIZER_EXPORT_H_
