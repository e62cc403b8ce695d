// SPDX-License-Identifier: Apache-2.0
#include "core/text/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace titan::text {
namespace {

struct Sequence {
  size_t length;  // bytes of the sequence, or of the ill-formed maximal subpart
  bool well_formed;
  bool cut;  // ill-formed only because the input ends
};

// What stands at the front of `bytes`. REQUIRES: not empty.
Sequence ReadSequence(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {1, true, false};
  size_t length = 0;
  uint8_t low = 0x80, high = 0xbf;  // range of the second byte (Unicode, table 3-7)
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {1, false, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, false, true};
    if (at(i) < low || at(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xbf;
  }
  return {length, true, false};
}

// Appends the repaired bytes; stops before a sequence that the end of input cut, and returns where.
size_t RepairUpToCut(std::string_view bytes, std::string* out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Sequence sequence = ReadSequence(bytes.substr(at));
    if (sequence.cut) break;
    out->append(sequence.well_formed ? bytes.substr(at, sequence.length) : kReplacement);
    at += sequence.length;
  }
  return at;
}

utf8proc_category_t CategoryOf(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

}  // namespace

bool IsValidUtf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Sequence sequence = ReadSequence(bytes.substr(at));
    if (!sequence.well_formed) return false;
    at += sequence.length;
  }
  return true;
}

std::string RepairUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Repairer repairer;
  repairer.Append(bytes, &out);
  repairer.Finish(&out);
  return out;
}

void Utf8Repairer::Append(std::string_view bytes, std::string* out) {
  if (held_.empty()) {
    held_ = bytes.substr(RepairUpToCut(bytes, out));
    return;
  }
  held_.append(bytes);
  const size_t done = RepairUpToCut(held_, out);
  held_.erase(0, done);
}

void Utf8Repairer::Finish(std::string* out) {
  if (!held_.empty()) out->append(kReplacement);
  held_.clear();
}

uint32_t NextCodePoint(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[*at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    *at += 1;
    return lead;
  }
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint32_t value = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3fu);
  *at += length;
  return value;
}

uint32_t PreviousCodePoint(std::string_view text, size_t end, size_t* begin) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  *begin = at;
  return NextCodePoint(text, &at);
}

void AppendUtf8(uint32_t c, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsNumeric(uint32_t c) {
  const auto category = CategoryOf(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsWordCharacter(uint32_t c) {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join_Control, and the symbols that are Alphabetic: circled, squared and negative letters.
      return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
             (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
             (c >= 0x1f170 && c <= 0x1f189);
  }
}

StatusOr<std::string> ToNfc(std::string_view text) {
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text);
  utf8proc_uint8_t* out = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  if (length < 0) return ResourceExhausted(std::string("NFC: ") + utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
}

}  // namespace titan::text
