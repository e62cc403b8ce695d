// SPDX-License-Identifier: Apache-2.0
// Tokenizer::FromGguf: a tokenizer out of the keys tokenizer.ggml.*.
#include <fmt/format.h>

#include <utility>

#include "core/text/known_patterns.h"
#include "core/text/tokenizer.h"

namespace titan::text {
namespace {

// Values of tokenizer.ggml.token_type.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknownToken = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

}  // namespace

StatusOr<GgufPre> FindGgufPre(std::string_view pre, std::string_view where) {
  if (pre == "smollm") return GgufPre{kGpt2Pattern, /*individual_digits=*/true};
  if (pre == "gpt-2") return GgufPre{kGpt2Pattern};
  if (pre == "qwen2") return GgufPre{kQwen2Pattern, false, /*nfc=*/true};
  if (pre == "llama-bpe") return GgufPre{kLlama3Pattern, false, false, /*ignore_merges=*/true};
  return Unimplemented(fmt::format(
      "{}: key tokenizer.ggml.pre: \"{}\" is not covered (smollm, gpt-2, qwen2, llama-bpe)", where,
      pre));
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const formats::GgufTokenizer& gguf,
                                                         std::string_view where) {
  if (gguf.model != "gpt2") {
    return Unimplemented(
        fmt::format("{}: key tokenizer.ggml.model: \"{}\" is not covered (gpt2, byte-level BPE)",
                    where, gguf.model));
  }
  TokenizerParts parts;
  BytePairModel::Options model;
  TITAN_ASSIGN_OR_RETURN(const GgufPre pre, FindGgufPre(gguf.pre, where));
  if (pre.individual_digits) parts.pre_tokenizer.AddDigits(/*individual=*/true);
  TITAN_RETURN_IF_ERROR(
      parts.pre_tokenizer.AddRegex(pre.pattern, PreTokenizer::Gaps::kKeep, where));
  parts.nfc = pre.nfc;
  model.ignore_merges = pre.ignore_merges;
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const std::string& text = gguf.tokens[i];
    const int32_t type = i < gguf.token_types.size() ? gguf.token_types[i] : int32_t{kNormal};
    const TokenId id = static_cast<TokenId>(i);
    if (type != kNormal && type != kControl && type != kUserDefined && type != kUnused) {
      return Unimplemented(fmt::format(
          "{}: key tokenizer.ggml.token_type: {} of token {} is not covered", where, type, i));
    }
    model.vocabulary.emplace_back(text, id);
    parts.entries.push_back({text, type == kControl});
  }
  for (size_t i = 0; i < gguf.merges.size(); ++i) {
    const std::string& merge = gguf.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string::npos) {
      return InvalidArgument(fmt::format(
          "{}: key tokenizer.ggml.merges: position {}: must be two tokens with one space", where,
          i));
    }
    model.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  TITAN_ASSIGN_OR_RETURN(parts.model, BytePairModel::Create(model, where));
  // Behind Create, which has refused empty and repeated tokens.
  for (size_t i = 0; i < gguf.token_types.size() && i < gguf.tokens.size(); ++i) {
    if (gguf.token_types[i] != kControl && gguf.token_types[i] != kUserDefined) continue;
    AddedToken added;
    added.id = static_cast<TokenId>(i);
    added.content = gguf.tokens[i];
    added.special = gguf.token_types[i] == kControl;
    parts.added.Add(added);
  }
  const TokenId size = static_cast<TokenId>(gguf.tokens.size());
  const std::pair<TokenId, TokenId*> ids[] = {{gguf.bos_id, &parts.bos_id},
                                              {gguf.eos_id, &parts.eos_id},
                                              {gguf.pad_id, &parts.pad_id},
                                              {gguf.unk_id, &parts.unk_id}};
  for (const auto& [id, out] : ids) {
    if (id >= size) {
      return InvalidArgument(
          fmt::format("{}: special token id {} is not below {}", where, id, size));
    }
    *out = id < 0 ? kNoToken : id;
  }
  if ((gguf.add_bos && parts.bos_id == kNoToken) || (gguf.add_eos && parts.eos_id == kNoToken)) {
    return InvalidArgument(fmt::format(
        "{}: key tokenizer.ggml.add_bos_token or add_eos_token: the file names no such token",
        where));
  }
  if (gguf.add_bos) parts.prefix.push_back(parts.bos_id);
  if (gguf.add_eos) parts.suffix.push_back(parts.eos_id);
  return Create(std::move(parts));
}

}  // namespace titan::text
