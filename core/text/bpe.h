// SPDX-License-Identifier: Apache-2.0
//
// BytePairModel: a byte-level BPE vocabulary and its merges. Vocabulary entries are written in the
// byte alphabet (each byte one printable character); inside, pieces and tokens are plain bytes.
//
// Immutable after Create apart from a cache of flags that cannot change a result; any thread.
#ifndef TITAN_CORE_TEXT_BPE_H_
#define TITAN_CORE_TEXT_BPE_H_

#include <array>
#include <atomic>
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

// The bytes that a vocabulary entry stands for; false if a character is not of the byte alphabet.
// REQUIRES: valid UTF-8.
bool BytesOfEntry(std::string_view entry, std::string* bytes);
// The vocabulary entry of some bytes.
std::string EntryOfBytes(std::string_view bytes);

class BytePairModel : public TokenModel {
 public:
  struct Options {
    // (entry, id); ids need not be contiguous.
    std::vector<std::pair<std::string, TokenId>> vocabulary;
    // (left entry, right entry), strongest first.
    std::vector<std::pair<std::string, std::string>> merges;
    // A piece that is itself an entry is taken whole, whatever the merges say.
    bool ignore_merges = false;
  };

  // InvalidArgument: an entry or id twice, a merge of or to an entry that does not exist (its
  // position, counted from 0, and the entry are named), no merges.
  static StatusOr<std::unique_ptr<BytePairModel>> Create(const Options& options,
                                                         std::string_view where);

  // Appends the tokens of one piece. A byte without a token of its own is left out, as the
  // reference implementations do: see bytes_without_token.
  void EncodePiece(std::string_view piece, std::vector<TokenId>* out) const override;
  TokenId FindEntry(std::string_view entry) const override;
  std::vector<uint8_t> bytes_without_token() const override;

 private:
  struct Merge {
    uint32_t rank;
    TokenId merged;
  };
  struct BytesHash {
    using is_transparent = void;
    size_t operator()(std::string_view bytes) const { return Hash64(bytes); }
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const { return HashFields(pair); }
  };
  using ByBytes = std::unordered_map<std::string, TokenId, BytesHash, std::equal_to<>>;
  enum Whole : uint8_t { kUnknown = 0, kOneToken = 1, kSeveral = 2 };

  BytePairModel() = default;
  static uint64_t PairKey(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void Merged(std::string_view piece, std::vector<TokenId>* out) const;

  ByBytes by_bytes_;  // entries of the byte alphabet, by their bytes
  ByBytes by_entry_;  // entries outside it, by their text
  std::array<TokenId, 256> of_byte_;
  std::unordered_map<uint64_t, Merge, PairHash> merges_;
  bool ignore_merges_ = false;
  // Per id: do the merges lead from the entry's bytes to the entry alone? Found out when first
  // asked.
  mutable std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_BPE_H_
