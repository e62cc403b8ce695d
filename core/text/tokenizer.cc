// SPDX-License-Identifier: Apache-2.0
#include "core/text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/check.h"
#include "core/text/piece_model.h"

namespace titan::text {

namespace {

// What an entry of SentencePiece's form decodes to.
std::string BytesOfPiece(std::string_view text) {
  const int byte = ByteOfEntry(text);
  return byte >= 0 ? std::string(1, static_cast<char>(byte)) : WithoutSpaceSigns(text);
}

// Every space becomes the sign.
std::string WithSpaceSigns(std::string_view text, bool prefix) {
  std::string out(prefix ? kSpaceSign : std::string_view());
  out.reserve(out.size() + text.size());
  for (const char c : text) {
    if (c == ' ') {
      out.append(kSpaceSign);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  TITAN_CHECK(parts_.model != nullptr);
  bytes_.resize(parts_.entries.size());
  for (size_t id = 0; id < bytes_.size(); ++id) {
    const TokenizerParts::Entry& entry = parts_.entries[id];
    if (parts_.space_sign) {
      bytes_[id] = entry.special ? entry.text : BytesOfPiece(entry.text);
    } else if (!BytesOfEntry(entry.text, &bytes_[id])) {
      bytes_[id] = entry.text;
    }
  }
}

std::unique_ptr<Tokenizer> Tokenizer::Create(TokenizerParts parts) {
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromMaterial(
    const formats::TokenizerMaterial& material, std::string_view where) {
  if (material.gguf.has_value()) return FromGguf(*material.gguf, where);
  if (material.tokenizer_json.empty()) {
    return NotFound(fmt::format("{}: the model comes without a tokenizer", where));
  }
  return FromJson(material.tokenizer_json, material.tokenizer_config_json, where);
}

StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                 const EncodeOptions& options) const {
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = RepairUtf8(text);
    text = repaired;
  }
  std::vector<TokenId> out;
  if (options.add_special) out = parts_.prefix;
  for (const AddedTokens::Part& part : parts_.added.Find(text, options.parse_special)) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      TITAN_RETURN_IF_ERROR(EncodeText(part.text, options.parse_special, &out));
    }
  }
  if (options.add_special) out.insert(out.end(), parts_.suffix.begin(), parts_.suffix.end());
  return out;
}

Status Tokenizer::EncodeText(std::string_view text, bool parse_special,
                             std::vector<TokenId>* out) const {
  std::string normalized;
  if (parts_.nfc) {
    TITAN_ASSIGN_OR_RETURN(normalized, ToNfc(text));
    text = normalized;
  }
  if (parts_.space_sign && !text.empty()) {
    normalized = WithSpaceSigns(text, parts_.space_prefix);
    text = normalized;
  }
  if (parts_.added_normalized.empty()) return EncodePieces(text, out);
  for (const AddedTokens::Part& part : parts_.added_normalized.Find(text, parse_special)) {
    if (part.id >= 0) {
      out->push_back(part.id);
    } else {
      TITAN_RETURN_IF_ERROR(EncodePieces(part.text, out));
    }
  }
  return OkStatus();
}

Status Tokenizer::EncodePieces(std::string_view text, std::vector<TokenId>* out) const {
  std::vector<std::string_view> pieces;
  TITAN_RETURN_IF_ERROR(parts_.pre_tokenizer.Split(text, &pieces));
  for (const std::string_view piece : pieces) parts_.model->EncodePiece(piece, out);
  return OkStatus();
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  Utf8Repairer repairer;
  for (const TokenId id : ids) {
    if (skip_special && IsSpecial(id)) continue;
    repairer.Append(TokenBytes(id), &out);
  }
  repairer.Finish(&out);
  if (parts_.strip_space && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

std::string_view Tokenizer::TokenText(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return "";
  return parts_.entries[static_cast<size_t>(id)].text;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return "";
  return bytes_[static_cast<size_t>(id)];
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && id < vocab_size() && parts_.entries[static_cast<size_t>(id)].special;
}

TokenId Tokenizer::FindToken(std::string_view text) const {
  if (text.empty()) return kNoToken;
  const TokenId id = parts_.model->FindEntry(text);
  if (id != kNoToken) return id;
  // Added tokens need not stand in the model's vocabulary.
  for (TokenId other = 0; other < vocab_size(); ++other) {
    if (TokenText(other) == text) return other;
  }
  return kNoToken;
}

std::string DecodeStream::Push(TokenId id) {
  if (skip_special_ && tokenizer_.IsSpecial(id)) return "";
  repairer_.Append(tokenizer_.TokenBytes(id), &held_);
  if (repairer_.pending() || held_.ends_with(kReplacement)) return "";
  return TakeHeld();
}

std::string DecodeStream::Finish() {
  repairer_.Finish(&held_);
  return TakeHeld();
}

std::string DecodeStream::TakeHeld() {
  if (!started_ && !held_.empty()) {
    started_ = true;
    if (tokenizer_.strips_space() && held_.starts_with(' ')) held_.erase(0, 1);
  }
  return std::exchange(held_, std::string());
}

}  // namespace titan::text
