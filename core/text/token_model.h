// SPDX-License-Identifier: Apache-2.0
//
// TokenModel: the vocabulary of a tokenizer and how a piece of text becomes tokens of it. Immutable
// apart from caches that cannot change a result; any thread.
#ifndef TITAN_CORE_TEXT_TOKEN_MODEL_H_
#define TITAN_CORE_TEXT_TOKEN_MODEL_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/ids.h"

namespace titan::text {

inline constexpr TokenId kNoToken = -1;

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the tokens of one piece.
  virtual void EncodePiece(std::string_view piece, std::vector<TokenId>* out) const = 0;
  // By the text of the entry as the file spells it; kNoToken if there is none.
  virtual TokenId FindEntry(std::string_view entry) const = 0;
  // Bytes that no text can be encoded with, ascending.
  virtual std::vector<uint8_t> bytes_without_token() const = 0;
};

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_TOKEN_MODEL_H_
