// SPDX-License-Identifier: Apache-2.0
//
// Pre-tokenizer expressions that files name instead of spelling out.
#ifndef TITAN_CORE_TEXT_KNOWN_PATTERNS_H_
#define TITAN_CORE_TEXT_KNOWN_PATTERNS_H_

#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace titan::text {

// GPT-2, and ByteLevel with use_regex.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Qwen2 to Qwen3: digits one by one, line ends kept with what precedes them.
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Llama 3: as Qwen2, digits in groups of up to three.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Qwen3.5 and 3.6: as Qwen2, marks belong to the letters before them.
inline constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Value "default" of tokenizer.ggml.pre: punctuation and signs, GPT-2's cut without its last
// alternative, runs of digits, three digits.
inline constexpr std::string_view kGgufDefaultPatterns[] = {
    R"([\p{P}\$\+<=>\^~\|]+)",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))", R"(\p{N}+)",
    R"([0-9][0-9][0-9])"};

// What a value of tokenizer.ggml.pre stands for: the original tokenizer's normalizer, pre-tokenizer
// and model setting.
struct GgufPre {
  std::vector<std::string_view> patterns;  // each cuts the pieces of the one before
  bool individual_digits = false;          // cut at each digit before the pattern
  bool nfc = false;
  bool ignore_merges = false;
};

// Unimplemented: a value that is not covered.
StatusOr<GgufPre> FindGgufPre(std::string_view pre, std::string_view where);

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_KNOWN_PATTERNS_H_
