// SPDX-License-Identifier: Apache-2.0
//
// AddedTokens: the tokens that are found in a text before anything else happens to it. At each
// place the longest one counts, from left to right, without overlap. Immutable after building; any
// thread.
#ifndef TITAN_CORE_TEXT_ADDED_TOKENS_H_
#define TITAN_CORE_TEXT_ADDED_TOKENS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"

namespace titan::text {

struct AddedToken {
  TokenId id = -1;
  std::string content;       // valid UTF-8, not empty
  bool special = false;      // control token: found only where special tokens are parsed
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space behind it along
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // is looked for in the normalized text
};

class AddedTokens {
 public:
  // REQUIRES: no other token of the same content was added.
  void Add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // A stretch of the text: a token (id >= 0), or text between tokens (id -1).
  struct Part {
    TokenId id;
    std::string_view text;
  };
  // Cuts text into parts, none of them empty text. Special tokens are text unless parse_special;
  // such a token still hides the tokens inside it. REQUIRES: valid UTF-8.
  std::vector<Part> Find(std::string_view text, bool parse_special) const;

 private:
  // A node of the trie of contents, by byte.
  struct Node {
    std::map<uint8_t, uint32_t> next;
    int32_t token = -1;  // index in tokens_
  };
  // Index in tokens_ of the longest token at the front of text, or -1.
  int32_t LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = {Node()};
  bool starts_[256] = {};
};

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_ADDED_TOKENS_H_
