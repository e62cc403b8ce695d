// SPDX-License-Identifier: Apache-2.0
//
// Texts of others that go into facts and messages, at a length that a journal can bear. Pure
// functions.
#ifndef TITAN_ORCHESTRATOR_WORDS_H_
#define TITAN_ORCHESTRATOR_WORDS_H_

#include <cstddef>
#include <string>

#include "core/base/status.h"

namespace titan::orchestrator {

// What a peer, or who gives a command, can put into one text of ours.
inline constexpr size_t kMaxWordsBytes = 500;
// A whole text of a fact: a sentence of ours around a few such words.
inline constexpr size_t kMaxTextBytes = 4096;

// The first max_bytes of a text, ended at a character, and how long it was.
inline std::string Shortened(const std::string& text, size_t max_bytes = kMaxWordsBytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "... (" + std::to_string(text.size()) + " bytes)";
}

// The message of a peer's failure.
inline std::string WordsOf(const Status& status) { return Shortened(MessageOf(status)); }

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_WORDS_H_
