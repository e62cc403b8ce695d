// SPDX-License-Identifier: Apache-2.0
//
// PieceModel: byte-pair encoding over characters as SentencePiece does it, with single bytes for
// characters that the vocabulary does not have. Two files describe it: scores of pieces (GGUF, the
// original form), where any two neighbours merge whose joined text is a piece, the highest score
// first; or an explicit list of merges (tokenizer.json), the first first. Equally strong merges
// happen from left to right.
//
// Immutable after creation; any thread.
#ifndef TITAN_CORE_TEXT_PIECE_MODEL_H_
#define TITAN_CORE_TEXT_PIECE_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/text/token_model.h"

namespace titan::text {

// The sign that stands for a space inside pieces, U+2581.
inline constexpr std::string_view kSpaceSign = "\xe2\x96\x81";

// The text with a space for each sign.
std::string WithoutSpaceSigns(std::string_view text);

// The byte of an entry like "<0x0A>"; -1 for another text.
int ByteOfEntry(std::string_view entry);
// "<0x0A>" for 10.
std::string EntryOfByte(uint8_t byte);

class PieceModel : public TokenModel {
 public:
  struct Piece {
    std::string text;
    TokenId id = 0;
    float score = 0;  // used where there are no merges
  };
  struct Options {
    std::vector<Piece> pieces;  // what text can become; ids need not be contiguous
    std::vector<std::pair<std::string, std::string>> merges;  // strongest first
    bool by_scores = false;                                   // merges are not given
    // All 256, or all kNoToken: then characters without a piece become unk.
    std::array<TokenId, 256> byte_tokens;
    TokenId unk = kNoToken;  // neighbouring unknown characters share one; kNoToken: left out
  };

  // InvalidArgument: a text or id twice, not UTF-8, a score that is not finite, a merge of or to a
  // piece that does not exist (its position, counted from 0, and the piece are named).
  static StatusOr<std::unique_ptr<PieceModel>> Create(const Options& options,
                                                      std::string_view where);

  void EncodePiece(std::string_view piece, std::vector<TokenId>* out) const override;
  TokenId FindEntry(std::string_view entry) const override;
  std::vector<uint8_t> bytes_without_token() const override;

 private:
  struct Entry {
    TokenId id;
    float score;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return Hash64(text); }
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const { return HashFields(pair); }
  };
  struct Symbol {
    size_t begin, size;  // size 0: merged into the one before
    TokenId id;          // kNoToken: a character without a piece
    int32_t previous, next;
  };

  PieceModel() = default;
  // How strong the merge of two neighbours is (smaller first) and what it gives; false: no merge.
  bool MergeOf(std::string_view joined, TokenId left, TokenId right, double* key,
               TokenId* merged) const;
  void Emit(std::string_view text, const std::vector<Symbol>& symbols,
            std::vector<TokenId>* out) const;

  std::unordered_map<std::string, Entry, TextHash, std::equal_to<>> by_text_;
  std::unordered_map<uint64_t, std::pair<uint32_t, TokenId>, PairHash> merges_;
  std::array<TokenId, 256> byte_tokens_;
  TokenId unk_ = kNoToken;
  bool by_scores_ = false;
};

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_PIECE_MODEL_H_
