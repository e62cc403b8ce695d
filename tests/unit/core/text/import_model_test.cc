// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a person points at is recognised by what it holds, comes as one bundle in Hugging
// Face form, and survives being stored as text and written as a folder; what does not fit is
// refused by file and field. Method: the small models of tests/cases with tokenizers and templates
// beside them.
#include "core/text/import_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "core/formats/hf_folder.h"
#include "core/text/tokenizer.h"
#include "tests/support/test_files.h"

namespace titan::text {
namespace {

namespace fs = std::filesystem;
using formats::ModelBundle;
using nlohmann::json;
using ::testing::HasSubstr;

// The tied model of tests/cases with a vocabulary that is cut to its 32 ids.
void WriteModelFolder(const TempFolder& folder) {
  for (const char* leaf : {"config.json", "model.safetensors"}) {
    WriteBytes(folder.path(leaf),
               ReadBytes(CasePath(std::string("safetensors/tied_with_head/") + leaf)));
  }
  json tokenizer = json::parse(ReadBytes(CasePath("tokenizer/strings.tokenizer.json")));
  json vocabulary = json::object();
  for (const auto& [entry, id] : tokenizer["model"]["vocab"].items()) {
    if (id < 31) vocabulary[entry] = id;
  }
  vocabulary["\xc4\x80\xc4\x81"] = 31;  // of the bytes 0 and 1
  tokenizer["model"]["vocab"] = vocabulary;
  tokenizer["model"]["merges"] = json::array({json::array({"\xc4\x80", "\xc4\x81"})});
  WriteBytes(folder.path("tokenizer.json"), tokenizer.dump());
  WriteBytes(folder.path("tokenizer_config.json"), R"({"eos_token": null, "x": 1})");
  WriteBytes(folder.path("chat_template.jinja"), "{{ messages[0].content }}");
  WriteBytes(folder.path("generation_config.json"), R"({"temperature": 0.5})");
}

// Small models with a tokenizer of each kind.
std::string SmallGguf(const std::string& leaf) {
  return std::string(TITAN_SOURCE_DIR) + "/tests/fuzz/corpus/gguf/" + leaf;
}

std::vector<float> AllValues(const formats::ModelSource& source) {
  std::vector<float> out;
  for (const formats::TensorSpec& tensor : source.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    EXPECT_TRUE(source.ReadTensorF32(tensor.name, values).ok()) << tensor.name;
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

Status Export(const ImportedModel& model, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(auto writer, formats::HfFolderWriter::Create(folder, model.bundle));
  for (const formats::TensorSpec& tensor : model.source->tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    TITAN_RETURN_IF_ERROR(model.source->ReadTensorF32(tensor.name, values));
    TITAN_RETURN_IF_ERROR(writer.Append(tensor.name, values));
  }
  return writer.Finish();
}

TEST(ImportModelTest, AFolderAndAGgufComeAsEqualBundlesAgain) {
  const TempFolder folder;
  WriteModelFolder(folder);
  for (const std::string& path :
       {folder.path(), SmallGguf("q4_0.gguf"), SmallGguf("q5_1.gguf"), SmallGguf("spm_f32.gguf")}) {
    SCOPED_TRACE(path);
    const auto model = ImportModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_FALSE(model->bundle.tokenizer_json.empty());
    // Through text, as a version carries it.
    const auto decoded = formats::DecodeBundle(formats::EncodeBundle(model->bundle), "version 0");
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, model->bundle);
    // Through a folder.
    const TempFolder out;
    const Status exported = Export(*model, out.path("new/model"));
    ASSERT_TRUE(exported.ok()) << exported;
    const auto again = ImportModel(out.path("new/model"));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(formats::EncodeBundle(again->bundle), formats::EncodeBundle(model->bundle));
    EXPECT_EQ(AllValues(*again->source), AllValues(*model->source));
    // And once more: nothing changes any longer.
    ASSERT_TRUE(Export(*again, out.path("third")).ok());
    const auto third = ImportModel(out.path("third"));
    ASSERT_TRUE(third.ok()) << third.status();
    EXPECT_EQ(third->bundle, again->bundle);
  }
}

TEST(ImportModelTest, TheExportedFilesHoldTheTemplateAndTheIdsThatEndAText) {
  const TempFolder folder;
  WriteModelFolder(folder);
  const auto model = ImportModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const TempFolder out;
  ASSERT_TRUE(Export(*model, out.path("m")).ok());
  const json config = json::parse(ReadBytes(out.path("m/tokenizer_config.json")));
  EXPECT_EQ(config["chat_template"], "{{ messages[0].content }}");
  EXPECT_EQ(config["x"], 1);
  EXPECT_EQ(json::parse(ReadBytes(out.path("m/generation_config.json"))),
            json({{"temperature", 0.5}}));
  ModelBundle plain = model->bundle;
  plain.generation_config_json.clear();
  const auto texts = formats::FolderTextsOf(plain);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(json::parse(texts->generation_config_json),
            json({{"bos_token_id", 1}, {"eos_token_id", 2}, {"do_sample", false}}));
}

TEST(ImportModelTest, AListOfNamedTemplatesStaysAList) {
  ModelBundle bundle;
  bundle.config = ImportModel(SmallGguf("q4_0.gguf"))->bundle.config;
  bundle.tokenizer_config_json =
      R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "x", "template": "b"}]})";
  bundle.chat_template = "a";
  EXPECT_EQ(formats::FolderTextsOf(bundle)->tokenizer_config_json, bundle.tokenizer_config_json);
  bundle.chat_template = "c";
  EXPECT_EQ(json::parse(formats::FolderTextsOf(bundle)->tokenizer_config_json),
            json({{"chat_template", "c"}}));
}

TEST(ImportModelTest, WhatIsPointedAtIsToldApartByItsContent) {
  const TempFolder folder;
  const std::string gguf = ReadBytes(SmallGguf("q4_0.gguf"));
  // A GGUF under another name, alone in a folder.
  EXPECT_TRUE(ImportModel(WriteBytes(folder.path("weights.bin"), gguf)).ok());
  EXPECT_TRUE(ImportModel(folder.path()).ok());
  WriteBytes(folder.path("other.gguf"), gguf);
  const Status two = ImportModel(folder.path()).status();
  EXPECT_EQ(two.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(two), HasSubstr("2 GGUF files"));
  fs::create_directory(folder.path("empty"));
  EXPECT_EQ(ImportModel(folder.path("empty")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ImportModel(folder.path("none")).status().code(), StatusCode::kNotFound);
  const struct {
    std::string path;
    const char* words;
  } wrong[] = {
      {CasePath("safetensors/tied_with_head/model.safetensors"), "give the folder"},
      {WriteBytes(folder.path("a.bin"), "PK\x03\x04 and more"), "pickled"},
      {WriteBytes(folder.path("a.txt"), "hello"), "magic"},
      {WriteBytes(folder.path("a.none"), ""), "magic"},
  };
  for (const auto& c : wrong) {
    const Status status = ImportModel(c.path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr(c.words));
    EXPECT_THAT(MessageOf(status), HasSubstr(c.path));
  }
}

TEST(ImportModelTest, FilesThatDoNotFitAreRefusedByName) {
  const struct {
    const char* leaf;
    const char* text;
    const char* words;
  } cases[] = {
      {"config.json", R"({"model_type": "gemma3"})", "config.json: model_type: \"gemma3\""},
      {"config.json", "{", "config.json"},
      {"tokenizer.json", R"({"model": {"type": "WordPiece"}})", "tokenizer.json"},
      {"tokenizer_config.json", R"({"eos_token": "none of them"})", "eos_token"},
      {"chat_template.jinja", "{% for x in %}", "chat template"},
      {"chat_template.jinja", "\xff", "chat template: is not UTF-8"},
      {"generation_config.json", "[]", "generation_config.json: must be an object"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const TempFolder folder;
    WriteModelFolder(folder);
    WriteBytes(folder.path(c.leaf), c.text);
    const Status status = ImportModel(folder.path()).status();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr(c.words));
    EXPECT_THAT(MessageOf(status), HasSubstr(folder.path()));
  }
  const TempFolder folder;
  WriteModelFolder(folder);
  WriteBytes(folder.path("tokenizer.json"),
             ReadBytes(CasePath("tokenizer/strings.tokenizer.json")));
  const Status status = ImportModel(folder.path()).status();
  EXPECT_THAT(MessageOf(status), HasSubstr("vocab_size is 32"));
}

TEST(ImportModelTest, WeightsMayBeImportedWithoutTheirTokenizer) {
  // Its merges name a token that is not there.
  const std::string path = CasePath("gguf/qk_llama.gguf");
  const Status refused = ImportModel(path).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(refused), HasSubstr("merges: position 0"));
  const auto model = ImportModel(path, {.without_tokenizer = true});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->bundle.tokenizer_json.empty());
  const TempFolder out;
  ASSERT_TRUE(Export(*model, out.path("m")).ok());
  EXPECT_FALSE(fs::exists(out.path("m/tokenizer.json")));
  EXPECT_EQ(AllValues(*ImportModel(out.path("m"))->source), AllValues(*model->source));
}

TEST(ImportModelTest, AnExportThatFailsLeavesNothing) {
  const TempFolder folder;
  WriteModelFolder(folder);
  const auto model = ImportModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const TempFolder out;
  {  // abandoned
    const auto writer = formats::HfFolderWriter::Create(out.path("m"), model->bundle);
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE(fs::exists(out.path("m")));
    EXPECT_FALSE(fs::is_empty(out.path()));
  }
  EXPECT_TRUE(fs::is_empty(out.path()));
  {  // not all tensors
    auto writer = formats::HfFolderWriter::Create(out.path("m"), model->bundle);
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(writer->Finish().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(fs::is_empty(out.path()));
  WriteBytes(out.path("file"), "x");
  for (const char* name : {"file", "file/m"}) {
    const auto writer = formats::HfFolderWriter::Create(out.path(name), model->bundle);
    ASSERT_FALSE(writer.ok()) << name;
    EXPECT_THAT(MessageOf(writer.status()), HasSubstr(out.path("file")));
  }
  const Status full = Export(*model, folder.path());
  EXPECT_EQ(full.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(full), HasSubstr("name a new one"));
  fs::create_directory(out.path("empty"));
  EXPECT_TRUE(Export(*model, out.path("empty/")).ok());
}

TEST(ImportModelTest, BundlesThatAreNotOursAreRefusedByField) {
  const std::string good = formats::EncodeBundle(ImportModel(SmallGguf("q4_0.gguf"))->bundle);
  const struct {
    const char* field;
    json value;
  } cases[] = {{"format", 2}, {"config", "{}"}, {"config", 1}, {"tokenizer", nullptr}};
  for (const auto& c : cases) {
    json root = json::parse(good);
    root[c.field] = c.value;
    const auto bundle = formats::DecodeBundle(root.dump(), "version 0");
    ASSERT_FALSE(bundle.ok());
    EXPECT_THAT(MessageOf(bundle.status()), HasSubstr(std::string("version 0: ") + c.field));
  }
  EXPECT_FALSE(formats::DecodeBundle("", "version 0").ok());
  EXPECT_FALSE(formats::DecodeBundle("[]", "version 0").ok());
}

}  // namespace
}  // namespace titan::text
