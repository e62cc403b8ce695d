// SPDX-License-Identifier: Apache-2.0
//
// UTF-8: repair, one piece at a time or whole, and the classes of code points that tokenizers ask
// for. Repair replaces each maximal subpart of an ill-formed sequence by one U+FFFD (Unicode,
// section 3.9; WHATWG and Python do the same). Pure functions, any thread.
#ifndef TITAN_CORE_TEXT_UTF8_H_
#define TITAN_CORE_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace titan::text {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

bool IsValidUtf8(std::string_view bytes);

// The text with every ill-formed subpart replaced.
std::string RepairUtf8(std::string_view bytes);

// Repairs a stream of bytes: appends to *out what is decided. Bytes of a sequence that may still be
// completed stay inside.
class Utf8Repairer {
 public:
  void Append(std::string_view bytes, std::string* out);
  // True if an incomplete sequence is held.
  bool pending() const { return !held_.empty(); }
  // Ends the stream: a held sequence becomes one U+FFFD.
  void Finish(std::string* out);

 private:
  std::string held_;  // at most 3 bytes: a prefix of a well-formed sequence
};

// The code point at text[*at] and *at moved behind it. REQUIRES: valid UTF-8, *at at a boundary.
uint32_t NextCodePoint(std::string_view text, size_t* at);
// The code point that ends before `end`, and its first byte. REQUIRES: valid UTF-8, end > 0.
uint32_t PreviousCodePoint(std::string_view text, size_t end, size_t* begin);
void AppendUtf8(uint32_t code_point, std::string* out);

bool IsWhiteSpace(uint32_t code_point);  // property White_Space
bool IsNumeric(uint32_t code_point);     // general category N*
// A word character of regular expressions in Unicode: letters, marks, decimal digits, letter
// numbers, connectors, circled letters, zero-width joiners.
bool IsWordCharacter(uint32_t code_point);

// Normalization form C. REQUIRES: valid UTF-8. ResourceExhausted: out of memory.
StatusOr<std::string> ToNfc(std::string_view text);

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_UTF8_H_
