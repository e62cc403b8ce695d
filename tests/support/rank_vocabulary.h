// SPDX-License-Identifier: Apache-2.0
//
// Vocabularies that packages ship as ranks (each token's bytes with its number, strongest merge
// first), as the files that model folders hold: the text of a tokenizer.json, or the keys of a
// GGUF.
//
// The merge of a token is what byte-pair merging with the stronger ranks alone leaves of its bytes:
// two parts. Tokens of one byte have none, nor do those that merging cannot reach, of which Llama 3
// and Qwen3.5 have some.
//
// Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_RANK_VOCABULARY_H_
#define TITAN_TESTS_SUPPORT_RANK_VOCABULARY_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/formats/model_source.h"
#include "core/text/bpe.h"

namespace titan::test {

struct RankVocabulary {
  std::vector<std::string> tokens;          // bytes, by rank
  std::map<int32_t, std::string> specials;  // id -> text
  std::unordered_map<std::string, size_t> rank_of;
  std::vector<std::pair<std::string, std::string>> merges;  // entries, strongest first

  // Fills rank_of and merges.
  void Index() {
    for (size_t i = 0; i < tokens.size(); ++i) rank_of.emplace(tokens[i], i);
    EXPECT_EQ(rank_of.size(), tokens.size());
    for (size_t rank = 0; rank < tokens.size(); ++rank) {
      if (tokens[rank].size() < 2) continue;
      std::vector<std::string> parts;
      for (const char byte : tokens[rank]) parts.emplace_back(1, byte);
      while (parts.size() > 2) {
        size_t best = rank, at = parts.size();
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
          const auto it = rank_of.find(parts[i] + parts[i + 1]);
          if (it != rank_of.end() && it->second < best) {
            best = it->second;
            at = i;
          }
        }
        if (at == parts.size()) break;
        parts[at] += parts[at + 1];
        parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
      }
      if (parts.size() == 2) {
        merges.emplace_back(text::EntryOfBytes(parts[0]), text::EntryOfBytes(parts[1]));
      }
    }
    EXPECT_GT(merges.size() * 10, tokens.size() * 9);
  }
};

inline RankVocabulary ReadTiktoken(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  RankVocabulary out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const size_t space = line.find(' ');
    at = end + 1;
    if (space == std::string_view::npos) continue;
    std::string bytes;
    uint32_t bits = 0;
    int num_bits = 0;
    for (const char c : line.substr(0, space)) {
      if (c == '=') break;
      bits = (bits << 6 | static_cast<uint32_t>(kDigits.find(c))) & 0xffffu;
      num_bits += 6;
      if (num_bits < 8) continue;
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xffu);
    }
    EXPECT_EQ(std::to_string(out.tokens.size()), line.substr(space + 1));
    out.tokens.push_back(std::move(bytes));
  }
  out.Index();
  return out;
}

// u32 count, then per token u16 length, bytes, u32 rank.
inline RankVocabulary ReadQuicktokVocabulary(std::string_view file) {
  RankVocabulary out;
  uint32_t count = 0, rank = 0;
  uint16_t length = 0;
  size_t at = 0;
  const auto read = [&](void* value, size_t size) {
    if (at + size > file.size()) {
      ADD_FAILURE() << "the vocabulary ends at " << at;
      return false;
    }
    std::memcpy(value, file.data() + at, size);
    at += size;
    return true;
  };
  if (!read(&count, 4)) return out;
  out.tokens.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (!read(&length, 2)) return out;
    std::string bytes(length, '\0');
    if (!read(bytes.data(), length) || !read(&rank, 4) || rank >= count) return out;
    out.tokens[rank] = std::move(bytes);
  }
  out.Index();
  return out;
}

// u32 count, then per token u32 id, u16 length, bytes.
inline std::map<int32_t, std::string> ReadQuicktokSpecials(std::string_view file) {
  std::map<int32_t, std::string> out;
  uint32_t count = 0;
  if (file.size() < 4) return out;
  std::memcpy(&count, file.data(), 4);
  for (size_t at = 4; out.size() < count && at + 6 <= file.size();) {
    uint32_t id = 0;
    uint16_t length = 0;
    std::memcpy(&id, file.data() + at, 4);
    std::memcpy(&length, file.data() + at + 4, 2);
    out[static_cast<int32_t>(id)] = std::string(file.substr(at + 6, length));
    at += size_t{6} + length;
  }
  EXPECT_EQ(out.size(), count);
  return out;
}

struct TokenizerStyle {
  std::string regex;
  bool nfc = false;
  bool ignore_merges = false;
};

// As the model families' own files: NFC or nothing, Split by the regular expression, ByteLevel.
inline std::string TokenizerJsonOf(const RankVocabulary& ranks, const TokenizerStyle& style) {
  using nlohmann::json;
  json vocabulary = json::object(), merges = json::array(), added = json::array();
  for (size_t i = 0; i < ranks.tokens.size(); ++i) {
    vocabulary[text::EntryOfBytes(ranks.tokens[i])] = i;
  }
  for (const auto& [left, right] : ranks.merges) merges.push_back(left + " " + right);
  for (const auto& [id, content] : ranks.specials) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", style.regex}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const json normalizer = style.nfc ? json{{"type", "NFC"}} : json(nullptr);
  return json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", normalizer},
              {"pre_tokenizer",
               {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level})}}},
              {"post_processor", byte_level},
              {"decoder", byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", ""},
                {"end_of_word_suffix", ""},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", style.ignore_merges},
                {"vocab", std::move(vocabulary)},
                {"merges", std::move(merges)}}}}
      .dump();
}

inline formats::GgufTokenizer GgufTokenizerOf(const RankVocabulary& ranks, const std::string& pre) {
  formats::GgufTokenizer out;
  out.model = "gpt2";
  out.pre = pre;
  for (const std::string& bytes : ranks.tokens) out.tokens.push_back(text::EntryOfBytes(bytes));
  out.token_types.assign(out.tokens.size(), 1);
  for (const auto& [id, content] : ranks.specials) {
    EXPECT_EQ(static_cast<size_t>(id), out.tokens.size());
    out.tokens.push_back(content);
    out.token_types.push_back(3);
  }
  for (const auto& [left, right] : ranks.merges) out.merges.push_back(left + " " + right);
  return out;
}

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_RANK_VOCABULARY_H_
