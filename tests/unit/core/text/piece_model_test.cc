// SPDX-License-Identifier: Apache-2.0
// Goal: SentencePiece vocabularies encode as defined, keep special tokens and spaces apart, and are
// refused by name where they are not covered. Method: a naive merge loop as oracle over random
// texts and scores; a small vocabulary with every kind of token; each field of it changed for the
// worse.
#include "core/text/piece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include <nlohmann/json.hpp>

#include "core/base/philox.h"
#include "core/text/tokenizer.h"
#include "core/text/tokenizer_export.h"

namespace titan::text {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Merges the strongest pair, the leftmost of equals, until there is none.
std::vector<TokenId> NaiveMerge(const std::vector<PieceModel::Piece>& pieces, std::string text) {
  const auto find = [&](const std::string& t) -> const PieceModel::Piece* {
    for (const PieceModel::Piece& piece : pieces) {
      if (piece.text == t) return &piece;
    }
    return nullptr;
  };
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  while (true) {
    const PieceModel::Piece* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const PieceModel::Piece* merged = find(parts[i] + parts[i + 1]);
      if (merged == nullptr || (best != nullptr && merged->score <= best->score)) continue;
      best = merged;
      at = i;
    }
    if (best == nullptr) break;
    parts[at] = best->text;
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) {
    const PieceModel::Piece* piece = find(part);
    const TokenId id = piece == nullptr ? 999 : piece->id;
    if (id != 999 || ids.empty() || ids.back() != 999) ids.push_back(id);
  }
  return ids;
}

TEST(PieceModelTest, MergesAsTheDefinitionSays) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    uint32_t counter = 0;
    const auto next = [&](uint32_t below) {
      return Philox4x32({counter++, 0, 0, 0}, {seed, 7})[0] % below;
    };
    PieceModel::Options options;
    options.by_scores = true;
    options.byte_tokens.fill(kNoToken);
    options.unk = 999;
    std::map<std::string, bool> seen;
    for (TokenId id = 0; id < 30; ++id) {
      std::string text;
      const uint32_t length = id < 3 ? 1 : 2 + next(3);
      for (uint32_t i = 0; i < length; ++i) text += static_cast<char>('a' + next(3));
      if (!seen.emplace(text, true).second) continue;
      // Few different scores, so that ties are common.
      options.pieces.push_back({text, id, -static_cast<float>(next(8))});
    }
    const auto model = PieceModel::Create(options, "x");
    ASSERT_TRUE(model.ok()) << model.status();
    for (int round = 0; round < 30; ++round) {
      std::string text;
      const uint32_t length = next(24);
      for (uint32_t i = 0; i < length; ++i) text += static_cast<char>('a' + next(4));
      std::vector<TokenId> ids;
      (*model)->EncodePiece(text, &ids);
      EXPECT_EQ(ids, NaiveMerge(options.pieces, text)) << text;
    }
  }
}

// <unk> <s> </s>, the bytes, then pieces and one user-defined token.
formats::GgufTokenizer SmallVocabulary() {
  formats::GgufTokenizer g;
  g.model = "llama";
  const auto add = [&](const std::string& text, float score, int32_t type) {
    g.tokens.push_back(text);
    g.scores.push_back(score);
    g.token_types.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  add("</s>", 0, 3);
  for (int b = 0; b < 256; ++b) add(EntryOfByte(static_cast<uint8_t>(b)), 0, 6);
  const std::string space(kSpaceSign);
  add(space, -10, 1);            // 259
  add("a", -11, 1);              // 260
  add("b", -12, 1);              // 261
  add("ab", -1, 1);              // 262
  add(space + "ab", -2, 1);      // 263
  add(space + space, -3, 1);     // 264
  add("[" + space + "]", 0, 4);  // 265
  g.unk_id = 0;
  g.bos_id = 1;
  g.eos_id = 2;
  g.add_bos = true;
  return g;
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer, std::string_view text,
                            EncodeOptions options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

TEST(PieceModelTest, SpacesBytesAndAddedTokens) {
  formats::TokenizerMaterial material;
  material.gguf = SmallVocabulary();
  const auto hf = ToHfTokenizer(material, "f");
  ASSERT_TRUE(hf.ok()) << hf.status();
  for (const formats::TokenizerMaterial& form : {material, *hf}) {
    const auto made = Tokenizer::FromMaterial(form, "f");
    ASSERT_TRUE(made.ok()) << made.status();
    const Tokenizer& t = **made;
    EXPECT_THAT(Encode(t, ""), ElementsAre());
    EXPECT_THAT(Encode(t, "ab"), ElementsAre(263));
    EXPECT_THAT(Encode(t, " ab"), ElementsAre(259, 263));
    EXPECT_THAT(Encode(t, "ab", {.add_special = true}), ElementsAre(1, 263));
    EXPECT_THAT(Encode(t, "\xc3\xa9"), ElementsAre(259, 3 + 0xc3, 3 + 0xa9));
    // Each text between added tokens gets its space.
    EXPECT_THAT(Encode(t, "a</s>ab"), ElementsAre(259, 260, 2, 263));
    EXPECT_THAT(Encode(t, "a[ ]ab"), ElementsAre(259, 260, 265, 263));
    EXPECT_EQ(Encode(t, "</s>", {.parse_special = false}).size(), 5u);
    EXPECT_EQ(t.Decode(Encode(t, "ab b\xc3\xa9\n")), "ab b\xc3\xa9\n");
    EXPECT_EQ(t.Decode(std::vector<TokenId>{1, 263}), "<s> ab");
    EXPECT_EQ(t.Decode(std::vector<TokenId>{1, 263}, /*skip_special=*/true), "ab");
    EXPECT_EQ(t.Decode(std::vector<TokenId>{260, 265}), "a[ ]");
    EXPECT_EQ(t.unk_id(), 0);
    EXPECT_EQ(t.bos_id(), 1);
    EXPECT_TRUE(t.IsSpecial(0));
    EXPECT_TRUE(t.bytes_without_token().empty());
    // A character that is cut apart is held back; the first space is left out once.
    DecodeStream stream(t);
    EXPECT_EQ(stream.Push(263), "ab");
    EXPECT_EQ(stream.Push(3 + 0xc3), "");
    EXPECT_EQ(stream.Push(3 + 0xa9), "\xc3\xa9");
    EXPECT_EQ(stream.Push(263), " ab");
    EXPECT_EQ(stream.Finish(), "");
  }
}

TEST(PieceModelTest, WithoutTheSpaceBeforeATextNothingIsAddedOrTaken) {
  formats::TokenizerMaterial material;
  material.gguf = SmallVocabulary();
  material.gguf->add_space_prefix = false;
  const auto hf = ToHfTokenizer(material, "f");
  ASSERT_TRUE(hf.ok()) << hf.status();
  for (const formats::TokenizerMaterial& form : {material, *hf}) {
    const auto t = Tokenizer::FromMaterial(form, "f");
    ASSERT_TRUE(t.ok()) << t.status();
    EXPECT_THAT(Encode(**t, "ab ab"), ElementsAre(262, 263));
    EXPECT_EQ((*t)->Decode(Encode(**t, " ab")), " ab");
  }
}

TEST(PieceModelTest, BadVocabulariesAreRefusedByKey) {
  const struct {
    std::function<void(formats::GgufTokenizer*)> change;
    const char* words;
  } cases[] = {
      {[](formats::GgufTokenizer* g) { g->model = "t5"; }, "tokenizer.ggml.model: \"t5\""},
      {[](formats::GgufTokenizer* g) { g->scores.pop_back(); }, "tokenizer.ggml.scores"},
      {[](formats::GgufTokenizer* g) { g->scores[260] = NAN; }, "id 260: score"},
      {[](formats::GgufTokenizer* g) { g->tokens[261] = "a"; }, "\"a\" stands twice"},
      {[](formats::GgufTokenizer* g) { g->tokens[261] = "\xff"; }, "token 261"},
      {[](formats::GgufTokenizer* g) { g->tokens[1] = ""; }, "token 1 is empty"},
      {[](formats::GgufTokenizer* g) { g->tokens[2] = "<s>"; }, "token 2 \"<s>\" stands twice"},
      {[](formats::GgufTokenizer* g) { g->token_types[260] = 5; }, "5 of token 260"},
      {[](formats::GgufTokenizer* g) { g->token_types[3] = 1; }, "255 byte tokens"},
      {[](formats::GgufTokenizer* g) { g->tokens[4] = "<0x00>"; }, "token 4"},
      {[](formats::GgufTokenizer* g) { g->tokens[4] = "<0x1>"; }, "token 4"},
      {[](formats::GgufTokenizer* g) { g->unk_id = 266; }, "special token id 266"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.words);
    formats::GgufTokenizer gguf = SmallVocabulary();
    c.change(&gguf);
    const auto tokenizer = Tokenizer::FromGguf(gguf, "f");
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr(c.words));
  }
}

// "xb" is made of x, which is no piece, and b: scores merge them, merges of tokenizer.json cannot.
TEST(PieceModelTest, APieceThatNoMergeProducesIsNotExported) {
  const auto with = [](const std::vector<std::string>& pieces) {
    formats::TokenizerMaterial material;
    material.gguf = SmallVocabulary();
    for (const std::string& piece : pieces) {
      material.gguf->tokens.push_back(piece);
      material.gguf->scores.push_back(-4);
      material.gguf->token_types.push_back(1);
    }
    return material;
  };
  const auto scored = Tokenizer::FromMaterial(with({"xb"}), "f");
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_THAT(Encode(**scored, "xb"), ElementsAre(259, 266));
  const std::vector<std::vector<std::string>> refused = {
      {"xb"}, {"bx"}, {"xy"}, {"a\xc3\xa9", "c"}, {"xab"}};
  for (const auto& pieces : refused) {
    const auto hf = ToHfTokenizer(with(pieces), "f");
    ASSERT_FALSE(hf.ok()) << pieces[0];
    EXPECT_EQ(hf.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(MessageOf(hf.status()),
                HasSubstr("f: tokenizer.ggml.tokens: piece \"" + pieces[0] + "\" (id 266)"));
  }
  // With x as a piece of its own the same vocabulary is fine; "axb" is made by nothing either way.
  const std::vector<std::vector<std::string>> fine = {{"xb", "x"}, {"axb"}};
  for (const auto& pieces : fine) {
    const formats::TokenizerMaterial material = with(pieces);
    const auto hf = ToHfTokenizer(material, "f");
    ASSERT_TRUE(hf.ok()) << hf.status();
    const auto scored_form = Tokenizer::FromMaterial(material, "f");
    const auto merged_form = Tokenizer::FromMaterial(*hf, "f");
    ASSERT_TRUE(scored_form.ok() && merged_form.ok());
    for (const char* text : {"xb", "axb", "bxbaxb", "xxb ab"}) {
      EXPECT_EQ(Encode(**scored_form, text), Encode(**merged_form, text)) << text;
    }
  }
}

TEST(PieceModelTest, BadTokenizerFilesAreRefusedByField) {
  formats::TokenizerMaterial material;
  material.gguf = SmallVocabulary();
  const auto hf = ToHfTokenizer(material, "f");
  ASSERT_TRUE(hf.ok()) << hf.status();
  const struct {
    const char* pointer;
    json value;
    const char* words;
  } cases[] = {
      {"/normalizer/normalizers/0/prepend", "x", "prepend"},
      {"/normalizer/normalizers/1/content", "_", "pattern"},
      {"/normalizer/normalizers/1/pattern", {{"Regex", " "}}, "pattern"},
      {"/normalizer/normalizers/1", {{"type", "NFC"}}, "byte_fallback"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer"},
      {"/decoder", {{"type", "ByteLevel"}}, "decoder"},
      {"/decoder/decoders/0/content", "", "decoder"},
      {"/decoder/decoders/3/start", 2, "decoder"},
      {"/model/ignore_merges", true, "ignore_merges"},
      {"/model/byte_fallback", 1, "byte_fallback"},
      {"/model/unk_token", "<none>", "unk_token"},
      {"/model/vocab/a", 261, "stands twice"},
      {"/model/merges/0", {"a", "zz"}, "position 0"},
      {"/added_tokens/0/normalized", true, "normalized"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.pointer) + " = " + c.value.dump());
    json file = json::parse(hf->tokenizer_json);
    file[json::json_pointer(c.pointer)] = c.value;
    const auto tokenizer = Tokenizer::FromJson(file.dump(), "", "model");
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr(c.words));
  }
  json file = json::parse(hf->tokenizer_json);
  file["model"]["vocab"].erase("<0x41>");
  const auto tokenizer = Tokenizer::FromJson(file.dump(), "", "model");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(MessageOf(tokenizer.status()), HasSubstr("<0x41>"));
}

}  // namespace
}  // namespace titan::text
