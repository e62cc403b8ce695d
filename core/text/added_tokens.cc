// SPDX-License-Identifier: Apache-2.0
#include "core/text/added_tokens.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/text/utf8.h"

namespace titan::text {
namespace {

// Where the white space that ends `text` begins.
size_t TrailingSpaceBegin(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = 0;
    if (!IsWhiteSpace(PreviousCodePoint(text, end, &begin))) break;
    end = begin;
  }
  return end;
}

// Where the white space that begins `text` ends.
size_t LeadingSpaceEnd(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    size_t at = end;
    if (!IsWhiteSpace(NextCodePoint(text, &at))) break;
    end = at;
  }
  return end;
}

bool EndsWithWord(std::string_view text) {
  size_t begin = 0;
  return !text.empty() && IsWordCharacter(PreviousCodePoint(text, text.size(), &begin));
}

bool StartsWithWord(std::string_view text) {
  size_t at = 0;
  return !text.empty() && IsWordCharacter(NextCodePoint(text, &at));
}

}  // namespace

void AddedTokens::Add(const AddedToken& token) {
  TITAN_CHECK(!token.content.empty());
  uint32_t node = 0;
  for (const char c : token.content) {
    const uint8_t byte = static_cast<uint8_t>(c);
    const auto [it, is_new] = nodes_[node].next.emplace(byte, static_cast<uint32_t>(nodes_.size()));
    node = it->second;
    if (is_new) nodes_.emplace_back();
  }
  TITAN_CHECK(nodes_[node].token < 0);
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  starts_[static_cast<uint8_t>(token.content[0])] = true;
  tokens_.push_back(token);
}

int32_t AddedTokens::LongestAt(std::string_view text) const {
  int32_t longest = -1;
  uint32_t node = 0;
  for (const char c : text) {
    const auto it = nodes_[node].next.find(static_cast<uint8_t>(c));
    if (it == nodes_[node].next.end()) break;
    node = it->second;
    if (nodes_[node].token >= 0) longest = nodes_[node].token;
  }
  return longest;
}

std::vector<AddedTokens::Part> AddedTokens::Find(std::string_view text, bool parse_special) const {
  std::vector<Part> parts;
  size_t done = 0;  // the text before it lies in parts
  for (size_t at = 0; at < text.size();) {
    const int32_t found = starts_[static_cast<uint8_t>(text[at])] ? LongestAt(text.substr(at)) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    size_t begin = at;
    size_t end = at + token.content.size();
    at = end;
    if (token.special && !parse_special) continue;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = std::max(TrailingSpaceBegin(text.substr(0, begin)), done);
    if (token.rstrip) end += LeadingSpaceEnd(text.substr(end));
    // The white space that the token before took along may hold this one's beginning.
    begin = std::max(begin, done);
    if (end <= begin) continue;
    if (begin > done) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
  return parts;
}

}  // namespace titan::text
