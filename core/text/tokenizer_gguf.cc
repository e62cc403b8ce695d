// SPDX-License-Identifier: Apache-2.0
// Tokenizer::FromGguf: a tokenizer out of the keys tokenizer.ggml.*.
#include <fmt/format.h>

#include <iterator>
#include <set>
#include <utility>

#include "core/text/known_patterns.h"
#include "core/text/piece_model.h"
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

int32_t TypeOf(const formats::GgufTokenizer& gguf, size_t token) {
  return token < gguf.token_types.size() ? gguf.token_types[token] : int32_t{kNormal};
}

bool IsSpecialType(int32_t type) { return type == kControl || type == kUnknownToken; }

Status RefuseType(std::string_view where, int32_t type, size_t token) {
  return Unimplemented(fmt::format(
      "{}: key tokenizer.ggml.token_type: {} of token {} is not covered", where, type, token));
}

// The byte-level vocabulary: what the key tokenizer.ggml.pre names, and the merges.
Status LoadByteLevel(const formats::GgufTokenizer& gguf, std::string_view where,
                     TokenizerParts* parts) {
  BytePairModel::Options model;
  TITAN_ASSIGN_OR_RETURN(const GgufPre pre, FindGgufPre(gguf.pre, where));
  if (pre.individual_digits) parts->pre_tokenizer.AddDigits(/*individual=*/true);
  for (const std::string_view pattern : pre.patterns) {
    TITAN_RETURN_IF_ERROR(parts->pre_tokenizer.AddRegex(pattern, PreTokenizer::Gaps::kKeep, where));
  }
  parts->nfc = pre.nfc;
  model.ignore_merges = pre.ignore_merges;
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const int32_t type = TypeOf(gguf, i);
    if (type != kNormal && type != kControl && type != kUserDefined && type != kUnused) {
      return RefuseType(where, type, i);
    }
    model.vocabulary.emplace_back(gguf.tokens[i], static_cast<TokenId>(i));
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
  TITAN_ASSIGN_OR_RETURN(parts->model, BytePairModel::Create(model, where));
  return OkStatus();
}

// SentencePiece's vocabulary: text can become its normal pieces, merged by their scores; what it
// cannot becomes byte tokens, or unk where there are none.
Status LoadPieces(const formats::GgufTokenizer& gguf, std::string_view where,
                  TokenizerParts* parts) {
  if (gguf.scores.size() != gguf.tokens.size()) {
    return InvalidArgument(fmt::format("{}: key tokenizer.ggml.scores: {} entries for {} tokens",
                                       where, gguf.scores.size(), gguf.tokens.size()));
  }
  PieceModel::Options model;
  model.by_scores = true;
  model.byte_tokens.fill(kNoToken);
  int num_bytes = 0;
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const std::string& text = gguf.tokens[i];
    const TokenId id = static_cast<TokenId>(i);
    const int32_t type = TypeOf(gguf, i);
    if (text.empty() || !IsValidUtf8(text)) {
      return InvalidArgument(
          fmt::format("{}: key tokenizer.ggml.tokens: token {} is empty or not UTF-8", where, i));
    }
    if (type == kNormal) {
      model.pieces.push_back({text, id, gguf.scores[i]});
    } else if (type == kByte) {
      const int byte = ByteOfEntry(text);
      if (byte < 0 || model.byte_tokens[static_cast<size_t>(byte)] != kNoToken) {
        return InvalidArgument(fmt::format(
            "{}: key tokenizer.ggml.tokens: token {} \"{}\" must be a byte like <0x0A>, "
            "each once",
            where, i, text));
      }
      model.byte_tokens[static_cast<size_t>(byte)] = id;
      ++num_bytes;
    } else if (type != kControl && type != kUserDefined && type != kUnknownToken) {
      return RefuseType(where, type, i);
    }
  }
  if (num_bytes != 0 && num_bytes != 256) {
    return InvalidArgument(fmt::format(
        "{}: key tokenizer.ggml.tokens: has {} byte tokens, not all 256", where, num_bytes));
  }
  if (gguf.unk_id >= 0 && gguf.unk_id < static_cast<int32_t>(gguf.tokens.size())) {
    model.unk = gguf.unk_id;
  }
  parts->space_sign = true;
  parts->space_prefix = parts->strip_space = gguf.add_space_prefix;
  TITAN_ASSIGN_OR_RETURN(parts->model, PieceModel::Create(model, where));
  return OkStatus();
}

// Control and user-defined tokens, found in the raw text.
Status AddAddedTokens(const formats::GgufTokenizer& gguf, std::string_view where,
                      TokenizerParts* parts) {
  std::set<std::string> contents;
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const int32_t type = TypeOf(gguf, i);
    if (!IsSpecialType(type) && type != kUserDefined) continue;
    AddedToken added;
    added.id = static_cast<TokenId>(i);
    added.content = parts->space_sign ? WithoutSpaceSigns(gguf.tokens[i]) : gguf.tokens[i];
    added.special = IsSpecialType(type);
    if (!contents.insert(added.content).second) {
      return InvalidArgument(fmt::format(
          "{}: key tokenizer.ggml.tokens: token {} \"{}\" stands twice", where, i, added.content));
    }
    parts->added.Add(added);
  }
  return OkStatus();
}

}  // namespace

StatusOr<GgufPre> FindGgufPre(std::string_view pre, std::string_view where) {
  if (pre == "smollm") return GgufPre{{kGpt2Pattern}, /*individual_digits=*/true};
  if (pre == "gpt-2") return GgufPre{{kGpt2Pattern}};
  if (pre == "default") {
    return GgufPre{{std::begin(kGgufDefaultPatterns), std::end(kGgufDefaultPatterns)}};
  }
  if (pre == "qwen2" || pre == "deepseek-r1-qwen") {
    return GgufPre{{kQwen2Pattern}, false, /*nfc=*/true};
  }
  if (pre == "qwen35") return GgufPre{{kQwen35Pattern}, false, /*nfc=*/true};
  if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
    return GgufPre{{kLlama3Pattern}, false, false, /*ignore_merges=*/true};
  }
  return Unimplemented(fmt::format(
      "{}: key tokenizer.ggml.pre: \"{}\" is not covered (smollm, gpt-2, default, qwen2, "
      "deepseek-r1-qwen, qwen35, llama-bpe, llama3, llama-v3)",
      where, pre));
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const formats::GgufTokenizer& gguf,
                                                         std::string_view where) {
  TokenizerParts parts;
  if (gguf.model == "gpt2") {
    TITAN_RETURN_IF_ERROR(LoadByteLevel(gguf, where, &parts));
  } else if (gguf.model == "llama") {
    TITAN_RETURN_IF_ERROR(LoadPieces(gguf, where, &parts));
  } else {
    return Unimplemented(fmt::format(
        "{}: key tokenizer.ggml.model: \"{}\" is not covered (gpt2, byte-level BPE; llama, "
        "SentencePiece BPE)",
        where, gguf.model));
  }
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    parts.entries.push_back({gguf.tokens[i], IsSpecialType(TypeOf(gguf, i))});
  }
  // Behind the models, which have refused empty tokens.
  TITAN_RETURN_IF_ERROR(AddAddedTokens(gguf, where, &parts));
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
