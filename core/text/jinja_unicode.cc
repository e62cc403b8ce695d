// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_unicode.h"

#include <utf8proc.h>

#include <algorithm>

namespace titan::text::jinja {
namespace {

struct SpecialCase {
  char32_t code_point;
  char32_t upper[3];
  char32_t title[3];
};

constexpr SpecialCase kSpecialCases[] = {
#include "core/text/jinja_special_casing.inc"
};

const SpecialCase* FindSpecial(char32_t c) {
  const auto* end = std::end(kSpecialCases);
  const auto* it =
      std::lower_bound(std::begin(kSpecialCases), end, c,
                       [](const SpecialCase& s, char32_t value) { return s.code_point < value; });
  return it != end && it->code_point == c ? it : nullptr;
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || Category(c) == UTF8PROC_CATEGORY_LT; }

bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019;
  }
}

void AppendMapped(const char32_t (&mapped)[3], std::string* out) {
  for (char32_t c : mapped) {
    if (c != 0) AppendUtf8(c, out);
  }
}

void AppendUpper(char32_t c, std::string* out) {
  if (const SpecialCase* special = FindSpecial(c)) {
    AppendMapped(special->upper, out);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  if (const SpecialCase* special = FindSpecial(c)) {
    AppendMapped(special->title, out);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), out);
  }
}

// Capital sigma at the end of a word becomes the final form.
bool IsFinalSigma(const std::vector<char32_t>& points, size_t at) {
  bool cased_before = false;
  for (size_t i = at; i-- > 0;) {
    if (IsCaseIgnorable(points[i])) continue;
    cased_before = IsCased(points[i]);
    break;
  }
  if (!cased_before) return false;
  for (size_t i = at + 1; i < points.size(); ++i) {
    if (IsCaseIgnorable(points[i])) continue;
    return !IsCased(points[i]);
  }
  return true;
}

void AppendLower(const std::vector<char32_t>& points, size_t at, std::string* out) {
  const char32_t c = points[at];
  if (c == 0x130) {  // I with dot above: two code points
    AppendUtf8('i', out);
    AppendUtf8(0x307, out);
  } else if (c == 0x3A3) {
    AppendUtf8(IsFinalSigma(points, at) ? 0x3C2 : 0x3C3, out);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i <= static_cast<size_t>(extra)) return false;
    char32_t c = lead & (0x3F >> extra);
    for (int k = 1; k <= extra; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xC0) != 0x80) return false;
      c = (c << 6) | (byte & 0x3F);
    }
    if ((extra == 2 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) ||
        (extra == 3 && (c < 0x10000 || c > 0x10FFFF))) {
      return false;
    }
    i += extra + 1;
  }
  return true;
}

char32_t NextCodePoint(std::string_view text, size_t* pos) {
  const auto lead = static_cast<unsigned char>(text[*pos]);
  ++*pos;
  if (lead < 0xC0) return lead;
  const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t c = lead & (0x3F >> extra);
  for (int k = 0; k < extra && *pos < text.size(); ++k) {
    const auto byte = static_cast<unsigned char>(text[*pos]);
    if ((byte & 0xC0) != 0x80) break;
    c = (c << 6) | (byte & 0x3F);
    ++*pos;
  }
  return c;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::vector<char32_t> ToCodePoints(std::string_view text) {
  std::vector<char32_t> points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) points.push_back(NextCodePoint(text, &i));
  return points;
}

std::string FromCodePoints(const std::vector<char32_t>& points) {
  std::string out;
  out.reserve(points.size());
  for (char32_t c : points) AppendUtf8(c, &out);
  return out;
}

int64_t CountCodePoints(std::string_view text) {
  int64_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

bool IsSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsPrintable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsAlnum(char32_t c) {
  const auto category = Category(c);
  return IsAlpha(c) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU; }
bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL; }

std::string ToUpper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) AppendUpper(NextCodePoint(text, &i), &out);
  return out;
}

std::string ToLower(std::string_view text) {
  const auto points = ToCodePoints(text);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < points.size(); ++i) AppendLower(points, i, &out);
  return out;
}

std::string ToTitle(std::string_view text) {
  const auto points = ToCodePoints(text);
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (in_word) {
      AppendLower(points, i, &out);
    } else {
      AppendTitle(points[i], &out);
    }
    in_word = IsCased(points[i]);
  }
  return out;
}

std::string ToCapitalized(std::string_view text) {
  const auto points = ToCodePoints(text);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      AppendTitle(points[i], &out);
    } else {
      AppendLower(points, i, &out);
    }
  }
  return out;
}

std::string_view Strip(std::string_view text, const std::string* chars, bool left, bool right) {
  std::vector<char32_t> set;
  if (chars != nullptr) set = ToCodePoints(*chars);
  const auto drop = [&](char32_t c) {
    return chars == nullptr ? IsSpace(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!drop(NextCodePoint(text, &next))) break;
    begin = next;
  }
  while (right && begin < end) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t next = start;
    if (!drop(NextCodePoint(text, &next))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const char32_t c = NextCodePoint(text, &i);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(start, (keep_ends ? i : at) - start));
    start = i;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

}  // namespace titan::text::jinja
