// SPDX-License-Identifier: Apache-2.0
// Goal: field cases of other tokenizers come out right; what is not covered is refused by name;
// encoding then decoding gives the text back; pieces merge as the definition says. Method: the
// files of tests/cases/tokenizer; a small tokenizer.json mutated one field at a time; a naive merge
// loop as oracle over random texts.
#include "core/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/philox.h"
#include "core/text/tokenizer_export.h"
#include "tests/support/test_files.h"

namespace titan::text {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json ReadCase(const std::string& name) {
  return json::parse(ReadBytes(CasePath("tokenizer/" + name)));
}

StatusOr<std::unique_ptr<Tokenizer>> Load(const json& file, const std::string& config = "") {
  return Tokenizer::FromJson(file.dump(), config, "model");
}

TEST(TokenizerTest, AddedTokensStripAndKeepToWords) {
  const auto tokenizer = Load(ReadCase("added_strip.tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json cases = ReadCase("tok-added-strip.json");
  for (const json& c : cases["expect"]) {
    SCOPED_TRACE(c.dump());
    const auto ids = (*tokenizer)->Encode(c["text"].get<std::string>());
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, c["ids"].get<std::vector<TokenId>>());
    EXPECT_EQ((*tokenizer)->Decode(*ids), c["decoded"]);
  }
}

TEST(TokenizerTest, MergesMayBePairsOrTexts) {
  const json cases = ReadCase("tok-merge-pairs.json");
  for (const char* name : {"pairs.tokenizer.json", "strings.tokenizer.json"}) {
    const auto tokenizer = Load(ReadCase(name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const json& c : cases["expect"]["pairs and strings"]) {
      const auto ids = (*tokenizer)->Encode(c["text"].get<std::string>());
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(*ids, c["ids"].get<std::vector<TokenId>>()) << c.dump();
    }
  }
}

TEST(TokenizerTest, AMergeOfAnUnknownTokenIsRefusedByPosition) {
  const auto tokenizer = Load(ReadCase("bad_pair.tokenizer.json"));
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr("position 3"));
  EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr("\"zz\""));
}

TEST(TokenizerTest, WhatIsNotCoveredIsRefusedByName) {
  const struct {
    const char* pointer;
    json value;
    const char* words;
  } cases[] = {
      {"/truncation", {{"max_length", 4}}, "truncation"},
      {"/padding", {{"length", 4}}, "padding"},
      {"/normalizer", {{"type", "NFKC"}}, "NFKC"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Digits"}}, "ByteLevel"},
      {"/pre_tokenizer/add_prefix_space", true, "add_prefix_space"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/decoder", {{"type", "Metaspace"}}, "Metaspace"},
      {"/decoder", nullptr, "decoder"},
      {"/model/type", "Unigram", "Unigram"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/byte_fallback", true, "byte_fallback"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/merges", json::array(), "merges"},
      {"/model/merges", 3, "merges"},
      {"/model/merges/0", "abc", "position 0"},
      {"/model/merges/0", {"a", "b", "c"}, "position 0"},
      {"/model/vocab/hello", -1, "hello"},
      {"/model/vocab/hello", 268, "stands twice"},
      {"/model/vocab/hello", 1 << 30, "hello"},
      {"/added_tokens/0/id", 3, "added_tokens[0]"},
      {"/added_tokens/0/content", "", "added_tokens[0]"},
      {"/added_tokens/1/content", "<mark>", "<mark>"},
      {"/added_tokens/0/lstrip", "yes", "lstrip"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.pointer) + " = " + c.value.dump());
    json file = ReadCase("added_strip.tokenizer.json");
    file[json::json_pointer(c.pointer)] = c.value;
    const auto tokenizer = Load(file);
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr("tokenizer.json"));
    EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr(c.words));
  }
}

TEST(TokenizerTest, RegexesThatWouldMeanSomethingElseAreRefused) {
  for (const char* pattern : {"\\w+", "\\bx", "a.b", "^a", "a$", "[a&&b]", "[a[b]]", "\\p{N}{1,3}+",
                              "(?<name>a)", "(?x:a)", "[^\\S]", "(*UTF)", "\\R", "\\"}) {
    EXPECT_EQ(TranslateRegex(pattern, "x").status().code(), StatusCode::kUnimplemented) << pattern;
  }
  PreTokenizer pre;
  EXPECT_EQ(pre.AddRegex("(a", PreTokenizer::Gaps::kKeep, "x").code(),
            StatusCode::kInvalidArgument);
}

std::vector<std::string> Pieces(const PreTokenizer& pre, std::string_view text) {
  std::vector<std::string_view> views;
  EXPECT_TRUE(pre.Split(text, &views).ok());
  return {views.begin(), views.end()};
}

TEST(PreTokenizerTest, StepsCutOneAfterTheOther) {
  PreTokenizer pre;
  pre.AddDigits(/*individual=*/true);
  ASSERT_TRUE(pre.AddRegex(" ?\\p{L}+|\\s+", PreTokenizer::Gaps::kKeep, "x").ok());
  EXPECT_EQ(Pieces(pre, "ab 12c, d"),
            (std::vector<std::string>{"ab", " ", "1", "2", "c", ",", " d"}));
  EXPECT_TRUE(Pieces(pre, "").empty());

  PreTokenizer runs;
  runs.AddDigits(/*individual=*/false);
  EXPECT_EQ(Pieces(runs, "a12\xc2\xbd-3"), (std::vector<std::string>{"a", "12\xc2\xbd", "-", "3"}));

  PreTokenizer drop;
  ASSERT_TRUE(drop.AddRegex("[a-z]+", PreTokenizer::Gaps::kDrop, "x").ok());
  EXPECT_EQ(Pieces(drop, "ab12cd"), (std::vector<std::string>{"ab", "cd"}));
  PreTokenizer literal;
  ASSERT_TRUE(literal.AddLiteral("a.", PreTokenizer::Gaps::kKeep, "x").ok());
  EXPECT_EQ(Pieces(literal, "aba.b"), (std::vector<std::string>{"ab", "a.", "b"}));
}

// White space is the Unicode property: U+0085 belongs to it, U+180E and U+200B do not.
TEST(PreTokenizerTest, WhiteSpaceIsTheUnicodeProperty) {
  PreTokenizer pre;
  ASSERT_TRUE(pre.AddRegex("\\s+", PreTokenizer::Gaps::kKeep, "x").ok());
  EXPECT_EQ(Pieces(pre, "\xc2\x85\xe1\xa0\x8e"),
            (std::vector<std::string>{"\xc2\x85", "\xe1\xa0\x8e"}));
  EXPECT_EQ(Pieces(pre, "\xe2\x80\x8b ").size(), 2u);
}

TEST(PreTokenizerTest, LongRunsDoNotExhaustTheEngine) {
  PreTokenizer pre;
  ASSERT_TRUE(pre.AddRegex("(?:a|b)+|\\s+(?!\\S)|\\s+", PreTokenizer::Gaps::kKeep, "x").ok());
  const std::string text = std::string(500'000, 'a') + std::string(500'000, ' ') + "x";
  const auto pieces = Pieces(pre, text);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].size(), 500'000u);
  EXPECT_EQ(pieces[1].size(), 499'999u);
}

// The definition: merge the strongest pair, the leftmost first, until none is left.
std::vector<std::string> NaiveMerge(std::string_view piece, const json& merges) {
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.push_back(EntryOfBytes(std::string(1, c)));
  while (true) {
    size_t best_rank = merges.size(), best_at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank][0] == symbols[i] && merges[rank][1] == symbols[i + 1]) {
          best_rank = rank;
          best_at = i;
        }
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

TEST(TokenizerTest, RandomTextsMergeAsDefinedAndComeBack) {
  const json file = ReadCase("pairs.tokenizer.json");
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok());
  const std::string letters = "helotaingrswy ";
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::string text;
    const uint32_t length = RandomWord(seed, RandomDomain::kDataOrder, 0, 0, 0) % 40;
    for (uint32_t i = 0; i < length; ++i) {
      text += letters[RandomWord(seed, RandomDomain::kDataOrder, i, 1, 0) % letters.size()];
    }
    std::vector<std::string> want;
    PreTokenizer pre;
    ASSERT_TRUE(pre.AddRegex(" ?\\p{L}+|\\s+(?!\\S)|\\s+", PreTokenizer::Gaps::kKeep, "x").ok());
    for (const std::string& piece : Pieces(pre, text)) {
      for (const std::string& symbol : NaiveMerge(piece, file["model"]["merges"]))
        want.push_back(symbol);
    }
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second time uses what the first found out
      const auto ids = (*tokenizer)->Encode(text);
      ASSERT_TRUE(ids.ok());
      std::vector<std::string> got;
      for (const TokenId id : *ids) got.emplace_back((*tokenizer)->TokenText(id));
      EXPECT_EQ(got, want) << "text \"" << text << "\", seed " << seed;
      EXPECT_EQ((*tokenizer)->Decode(*ids), text);
    }
  }
}

TEST(TokenizerTest, RandomBytesNeverCrashAndStreamsAgreeWithDecode) {
  const auto tokenizer = Load(ReadCase("added_strip.tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok());
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::string bytes;
    std::vector<TokenId> random_ids;
    for (uint32_t i = 0; i < 60; ++i) {
      const uint32_t word = RandomWord(seed, RandomDomain::kDataOrder, i, 2, 0);
      bytes += static_cast<char>(word % 3 == 0 ? word >> 8 : 0x80 | (word >> 8 & 0x7f));
      random_ids.push_back(static_cast<TokenId>((word >> 4) % 300) -
                           5);  // also ids without a token
    }
    const auto ids = (*tokenizer)->Encode(bytes);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ((*tokenizer)->Decode(*ids), RepairUtf8(bytes));
    for (const bool skip_special : {false, true}) {
      DecodeStream stream(**tokenizer, skip_special);
      std::string joined;
      for (const TokenId id : random_ids) joined += stream.Push(id);
      joined += stream.Finish();
      EXPECT_EQ(joined, (*tokenizer)->Decode(random_ids, skip_special));
      EXPECT_TRUE(IsValidUtf8(joined));
    }
  }
}

TEST(TokenizerTest, SpecialIdsAndTemplatesAreRead) {
  json file = ReadCase("added_strip.tokenizer.json");
  file["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<user>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<user>": {"id": "<user>", "ids": [271], "tokens": ["<user>"]}}})");
  auto tokenizer = Load(file, R"({"bos_token": {"content": "<user>"}, "eos_token": "<plain>"})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 271);
  EXPECT_EQ((*tokenizer)->eos_id(), 273);
  EXPECT_EQ((*tokenizer)->pad_id(), kNoToken);
  EncodeOptions options;
  options.add_special = true;
  EXPECT_EQ(*(*tokenizer)->Encode("hello", options), (std::vector<TokenId>{271, 267}));
  options.parse_special = false;
  options.add_special = false;
  EXPECT_EQ((*tokenizer)->Encode("<user>", options)->size(), 5u);

  tokenizer = Load(file, R"({"bos_token": "<nobody>"})");
  EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr("bos_token"));
}

TEST(TokenizerTest, IgnoreMergesTakesAWholeEntry) {
  json file = ReadCase("pairs.tokenizer.json");
  file["model"]["vocab"]["xyz"] = 300;
  EXPECT_EQ((*Load(file))->Encode("xyz")->size(), 3u);
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(*(*Load(file))->Encode("xyz"), std::vector<TokenId>{300});
}

formats::GgufTokenizer SmallGguf() {
  formats::GgufTokenizer gguf;
  gguf.model = "gpt2";
  gguf.pre = "smollm";
  gguf.tokens = {"<|end|>", "a", "b", "ab", "1"};
  gguf.token_types = {3, 1, 1, 1, 1};
  gguf.merges = {"a b"};
  gguf.bos_id = 0;
  return gguf;
}

TEST(TokenizerTest, GgufKeysAreCheckedByName) {
  ASSERT_TRUE(Tokenizer::FromGguf(SmallGguf(), "f").ok());
  EXPECT_EQ((*Tokenizer::FromGguf(SmallGguf(), "f"))->bytes_without_token().size(), 253u);
  const struct {
    void (*change)(formats::GgufTokenizer*);
    const char* words;
  } cases[] = {
      {[](formats::GgufTokenizer* g) { g->model = "t5"; }, "tokenizer.ggml.model"},
      {[](formats::GgufTokenizer* g) { g->pre = "mystery"; }, "tokenizer.ggml.pre"},
      {[](formats::GgufTokenizer* g) { g->pre = ""; }, "tokenizer.ggml.pre"},
      {[](formats::GgufTokenizer* g) { g->token_types[1] = 6; }, "token_type"},
      {[](formats::GgufTokenizer* g) { g->tokens[2] = "a"; }, "stands twice"},
      {[](formats::GgufTokenizer* g) { g->tokens[0] = ""; }, "empty"},
      {[](formats::GgufTokenizer* g) { g->tokens[0] = "\xff"; }, "UTF-8"},
      {[](formats::GgufTokenizer* g) { g->merges[0] = "ab"; }, "position 0"},
      {[](formats::GgufTokenizer* g) { g->merges[0] = "\xff b"; }, "position 0"},
      {[](formats::GgufTokenizer* g) { g->merges.clear(); }, "merges"},
      {[](formats::GgufTokenizer* g) { g->bos_id = 5; }, "special token id 5"},
      {[](formats::GgufTokenizer* g) { g->add_eos = true; }, "add_eos"},
  };
  for (const auto& c : cases) {
    formats::GgufTokenizer gguf = SmallGguf();
    c.change(&gguf);
    const auto tokenizer = Tokenizer::FromGguf(gguf, "f");
    ASSERT_FALSE(tokenizer.ok()) << c.words;
    EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr(c.words));
  }
}

TEST(TokenizerTest, ExportKeepsWhatThePreTokenizerNameMeans) {
  for (const char* pre : {"smollm", "gpt-2", "default", "qwen2", "qwen35", "llama-bpe"}) {
    SCOPED_TRACE(pre);
    formats::TokenizerMaterial material;
    material.gguf = SmallGguf();
    material.gguf->pre = pre;
    material.gguf->add_bos = true;
    const auto from_gguf = Tokenizer::FromMaterial(material, "f");
    ASSERT_TRUE(from_gguf.ok()) << from_gguf.status();
    const auto exported = ToHfTokenizer(material, "f");
    ASSERT_TRUE(exported.ok()) << exported.status();
    const auto from_json = Tokenizer::FromMaterial(*exported, "g");
    ASSERT_TRUE(from_json.ok()) << from_json.status();
    EncodeOptions options;
    options.add_special = true;
    for (const char* text : {"ab1ab11", "<|end|>a b", "b\na ab", ""}) {
      EXPECT_EQ(*(*from_json)->Encode(text, options), *(*from_gguf)->Encode(text, options));
    }
    EXPECT_EQ((*from_json)->bos_id(), 0);
  }
}

TEST(Utf8Test, CodePointsGoForthAndBack) {
  for (const uint32_t c : {0x24u, 0xa2u, 0x7ffu, 0x800u, 0xd7ffu, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    AppendUtf8(c, &text);
    EXPECT_TRUE(IsValidUtf8(text));
    size_t at = 0;
    EXPECT_EQ(NextCodePoint(text, &at), c);
    EXPECT_EQ(at, text.size());
    EXPECT_EQ(PreviousCodePoint(text, text.size(), &at), c);
    EXPECT_EQ(at, 0u);
  }
  for (const char* bad :
       {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8", "\xe2\x82", "\x80"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
  }
}

}  // namespace
}  // namespace titan::text
