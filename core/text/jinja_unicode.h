// SPDX-License-Identifier: Apache-2.0
//
// Unicode text as chat templates see it: strings are UTF-8, positions and lengths are code points,
// and white space, line ends and case follow the rules of Python's str, which templates are written
// for. All functions are pure and thread-safe. Input is valid UTF-8 (IsValidUtf8 is checked where
// text enters); a broken byte is read as one code point and never past the end.
#ifndef TITAN_CORE_TEXT_JINJA_UNICODE_H_
#define TITAN_CORE_TEXT_JINJA_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace titan::text::jinja {

// Shortest form, no surrogates, at most U+10FFFF.
bool IsValidUtf8(std::string_view text);
// The code point at text[*pos]; moves *pos behind it. REQUIRES: *pos < text.size().
char32_t NextCodePoint(std::string_view text, size_t* pos);
void AppendUtf8(char32_t code_point, std::string* out);
std::vector<char32_t> ToCodePoints(std::string_view text);
std::string FromCodePoints(const std::vector<char32_t>& points);
int64_t CountCodePoints(std::string_view text);

bool IsSpace(char32_t c);      // str.isspace
bool IsLineBreak(char32_t c);  // str.splitlines
bool IsPrintable(char32_t c);  // str.isprintable
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);  // category Nd
bool IsAlnum(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string ToTitle(std::string_view text);  // every cased run starts with a capital (str.title)
std::string ToCapitalized(std::string_view text);  // str.capitalize

// Removes code points in chars (white space where chars is null) from the ends.
std::string_view Strip(std::string_view text, const std::string* chars, bool left, bool right);
std::vector<std::string> SplitLines(std::string_view text, bool keep_ends);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_UNICODE_H_
