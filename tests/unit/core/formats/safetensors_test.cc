// SPDX-License-Identifier: Apache-2.0
// Goal: safetensors are read exactly or refused by name, and what the writer makes reads back
// equal. Method: the field cases; headers made by hand, one fault each; round trips.
#include "core/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <span>

#include <nlohmann/json.hpp>

#include "core/formats/hf_folder.h"
#include "core/formats/model_source.h"
#include "tests/support/test_files.h"

namespace titan::formats {
namespace {

using ::testing::HasSubstr;

std::string FileOf(const std::string& header, size_t num_data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(num_data_bytes, '\1');
}

TEST(SafetensorsTest, FilesWithOnlyMetadataAndWithEmptyMetadataAreFine) {
  const auto only = SafetensorsFile::Open(CasePath("safetensors/metadata_only.safetensors"));
  ASSERT_TRUE(only.ok()) << only.status();
  EXPECT_TRUE(only->tensors().empty());
  EXPECT_EQ(only->metadata(), (std::map<std::string, std::string>{
                                  {"format", "pt"}, {"run", "demo"}, {"note", "tie=\"yes\""}}));
  const auto empty = SafetensorsFile::Open(CasePath("safetensors/empty_metadata.safetensors"));
  ASSERT_TRUE(empty.ok()) << empty.status();
  std::vector<float> w(2);
  ASSERT_TRUE(empty->ConvertTensor("w", w).ok());
  EXPECT_EQ(w, (std::vector<float>{1.5f, -2.0f}));

  const TempFolder folder;
  auto writer = SafetensorsWriter::Create(folder.path("m.safetensors"), {}, only->metadata());
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto again = SafetensorsFile::Open(folder.path("m.safetensors"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->metadata(), only->metadata());
}

TEST(SafetensorsTest, MalformedFilesAreRefusedByName) {
  const std::string w = R"("w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  const struct {
    std::string header;
    size_t data;
    std::string words;
  } cases[] = {
      {"{" + w + R"(, "v": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", 8,
       "overlaps"},
      {"{" + w + R"(, "v": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}})", 16,
       "tensor v"},
      {"{" + w + ", " + w + "}", 8, "\"w\" stands twice"},
      {"{" + w + "}", 7, "tensor w"},
      {"{" + w + "}", 9, "last 1 bytes"},
      {R"({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8, "tensor w"},
      {R"({"w": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}})", 8, "F33"},
      {R"({"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", 8, "shape"},
      {R"({"w": {"dtype": "F32", "shape": [1099511627776, 1099511627776], "data_offsets": [0, 8]}})",
       8, "tensor w: shape"},
      {R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})", 8, "data_offsets"},
      {R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 18446744073709551615]}})", 8,
       "data_offsets"},
      {R"({"w": {"dtype": "F32", "shape": [2]}})", 8, "data_offsets"},
      {R"({"w": 3})", 0, "tensor w"},
      {R"({"__metadata__": {"a": 1}})", 0, "__metadata__.a"},
      {"[]", 0, "header"},
      {"{", 0, "header"},
  };
  const TempFolder folder;
  for (const auto& c : cases) {
    SCOPED_TRACE(c.header);
    const std::string path = WriteBytes(folder.path("bad.safetensors"), FileOf(c.header, c.data));
    const auto file = SafetensorsFile::Open(path);
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(MessageOf(file.status()), HasSubstr("bad.safetensors"));
    EXPECT_THAT(MessageOf(file.status()), HasSubstr(c.words));
  }
  std::string huge = FileOf("{}", 0);
  huge[7] = '\x40';
  for (const std::string& bytes :
       {std::string(), std::string("abc"), std::string(8, '\xff'), huge}) {
    const auto file = SafetensorsFile::Open(WriteBytes(folder.path("bad"), bytes));
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(MessageOf(file.status()), HasSubstr("header length"));
  }
}

TEST(SafetensorsTest, WrittenInPiecesReadsBackEqual) {
  const TempFolder folder;
  const std::string path = folder.path("w.safetensors");
  const std::vector<TensorSpec> specs = {{"b", {2, 3}}, {"nothing", {0, 4}}, {"a", {1}}};
  const std::vector<float> b = {1, -2, 3, -4, 5, -6}, a = {0.5f};
  auto writer = SafetensorsWriter::Create(path, specs, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_FALSE(writer->Append("a", a).ok());  // b is due
  ASSERT_TRUE(writer->Append("b", std::span(b).first(2)).ok());
  EXPECT_FALSE(writer->Append("b", b).ok());  // too many
  ASSERT_TRUE(writer->Append("b", std::span(b).last(4)).ok());
  EXPECT_FALSE(writer->Finish().ok());  // a is missing
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->Append("a", a).ok());
  ASSERT_TRUE(writer->Finish().ok());

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> got(6);
  ASSERT_TRUE(file->ConvertTensor("b", got).ok());
  EXPECT_EQ(got, b);
  EXPECT_EQ(file->tensors().at("nothing").num_elements(), 0);
  EXPECT_EQ(file->metadata().at("format"), "pt");
}

TEST(SafetensorsTest, AnAbandonedWriterLeavesNothing) {
  const TempFolder folder;
  {
    auto writer = SafetensorsWriter::Create(folder.path("w"), {{"a", {1}}}, {});
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(HfFolderTest, ATiedModelMayStoreItsHead) {
  const auto model = OpenModelSource(CasePath("safetensors/tied_with_head"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tensors().back().name, "model.norm.weight");

  const TempFolder folder;
  std::string bytes = ReadBytes(CasePath("safetensors/tied_with_head/model.safetensors"));
  bytes[bytes.size() - 13504] ^= 1;  // the head comes first in the data
  WriteBytes(folder.path("model.safetensors"), bytes);
  WriteBytes(folder.path("config.json"),
             ReadBytes(CasePath("safetensors/tied_with_head/config.json")));
  const Status status = OpenModelSource(folder.path()).status();
  EXPECT_THAT(MessageOf(status), HasSubstr("lm_head.weight"));
}

TEST(HfFolderTest, AnUntiedModelWithoutHeadIsRefusedByName) {
  const Status status = OpenModelSource(CasePath("safetensors/untied_no_head")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), HasSubstr("lm_head.weight"));
  EXPECT_THAT(MessageOf(status), HasSubstr("tie_word_embeddings"));
}

TEST(HfFolderTest, AFileWithoutTensorsIsNoModel) {
  const TempFolder folder;
  WriteBytes(folder.path("model.safetensors"),
             ReadBytes(CasePath("safetensors/metadata_only.safetensors")));
  WriteBytes(folder.path("config.json"),
             ReadBytes(CasePath("safetensors/tied_with_head/config.json")));
  EXPECT_THAT(MessageOf(OpenModelSource(folder.path()).status()),
              HasSubstr("model.embed_tokens.weight is missing"));
}

// Every tensor of `model`, as f32, in order.
std::vector<std::vector<float>> ReadAll(const ModelSource& model) {
  std::vector<std::vector<float>> out;
  for (const TensorSpec& tensor : model.tensors()) {
    out.emplace_back(static_cast<size_t>(tensor.num_elements()));
    EXPECT_TRUE(model.ReadTensorF32(tensor.name, out.back()).ok()) << tensor.name;
  }
  return out;
}

// The configuration says other sizes or more layers than the tensors have, or there is one more.
TEST(HfFolderTest, MisshapenMissingAndForeignTensorsAreRefusedByName) {
  const std::string config = ReadBytes(CasePath("safetensors/tied_with_head/config.json"));
  const auto refusal_of = [&](const std::string& field, int value) {
    const TempFolder folder;
    WriteBytes(folder.path("model.safetensors"),
               ReadBytes(CasePath("safetensors/tied_with_head/model.safetensors")));
    std::string changed = config;
    const size_t at = changed.find("\"" + field + "\":");
    EXPECT_NE(at, std::string::npos) << field;
    const size_t begin = changed.find_first_of("0123456789", at);
    const size_t end = changed.find_first_not_of("0123456789", begin);
    changed.replace(begin, end - begin, std::to_string(value));
    WriteBytes(folder.path("config.json"), changed);
    const Status status = OpenModelSource(folder.path()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return MessageOf(status);
  };
  EXPECT_THAT(refusal_of("intermediate_size", 56),
              HasSubstr("tensor model.layers.0.mlp.gate_proj.weight: shape ["));
  EXPECT_THAT(refusal_of("intermediate_size", 56), HasSubstr("] must be [56, "));
  EXPECT_THAT(refusal_of("num_hidden_layers", 9),
              ::testing::AllOf(HasSubstr("tensor model.layers."), HasSubstr("is missing")));

  const auto whole = OpenModelSource(CasePath("safetensors/tied_with_head"));
  ASSERT_TRUE(whole.ok());
  std::vector<TensorSpec> specs = (*whole)->tensors();
  specs.push_back({"model.layers.0.self_attn.gate.weight", {1}});
  std::vector<std::vector<float>> values = ReadAll(**whole);
  values.push_back({1.0f});
  const TempFolder folder;
  auto writer =
      SafetensorsWriter::Create(folder.path("model.safetensors"), specs, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok());
  for (size_t i = 0; i < specs.size(); ++i) {
    ASSERT_TRUE(writer->Append(specs[i].name, values[i]).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  WriteBytes(folder.path("config.json"), config);
  EXPECT_THAT(MessageOf(OpenModelSource(folder.path()).status()),
              HasSubstr("tensor model.layers.0.self_attn.gate.weight is not part of the model"));
}

TEST(HfFolderTest, ExportOfAGgufReadsBackEqual) {
  for (const std::string name : {"gguf/qk_llama.gguf", "gguf/qk_qwen2.gguf"}) {
    const auto source = OpenModelSource(CasePath(name));
    ASSERT_TRUE(source.ok()) << source.status();
    const auto values = ReadAll(**source);
    const TempFolder folder;
    ModelBundle bundle;
    bundle.config = (*source)->config();
    bundle.chat_template = "{{ messages }}";
    auto writer = HfFolderWriter::Create(folder.path("model"), bundle);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(writer->Append((*source)->tensors()[i].name, values[i]).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
    const auto again = OpenModelSource(folder.path("model"));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->config(), (*source)->config());
    EXPECT_EQ((*again)->chat_template(), "{{ messages }}");
    EXPECT_EQ(ReadAll(**again), values);
  }
}

// Splits the case model into two shards with an index.
void WriteShards(const TempFolder& folder, const std::string& second_place_of_norm) {
  const auto whole = OpenModelSource(CasePath("safetensors/tied_with_head"));
  ASSERT_TRUE(whole.ok());
  const auto values = ReadAll(**whole);
  std::string map;
  for (const bool second : {false, true}) {
    const std::string leaf = second ? "model-2.safetensors" : "model-1.safetensors";
    std::vector<TensorSpec> specs;
    for (const TensorSpec& tensor : (*whole)->tensors()) {
      if ((tensor.name == "model.norm.weight") == second) specs.push_back(tensor);
    }
    auto writer = SafetensorsWriter::Create(folder.path(leaf), specs, {{"format", "pt"}});
    ASSERT_TRUE(writer.ok());
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string& name = (*whole)->tensors()[i].name;
      if ((name == "model.norm.weight") != second) continue;
      ASSERT_TRUE(writer->Append(name, values[i]).ok());
      map += (map.empty() ? "\"" : ", \"") + name + "\": \"" +
             (second ? second_place_of_norm : leaf) + "\"";
    }
    ASSERT_TRUE(writer->Finish().ok());
  }
  WriteBytes(folder.path("model.safetensors.index.json"), "{\"weight_map\": {" + map + "}}");
  WriteBytes(folder.path("config.json"),
             ReadBytes(CasePath("safetensors/tied_with_head/config.json")));
}

// Experts that a file keeps in one tensor: written where fused_experts.h says, read back equal, and
// MXFP4 blocks in their place are refused by name.
TEST(HfFolderTest, FusedExpertsLieWhereTheFamilyHasThem) {
  constexpr int64_t kHidden = 6, kWidth = 10, kExperts = 3;
  ModelBundle bundle;
  ModelConfig& config = bundle.config;
  config.family = "gpt_oss";
  config.hidden_size = kHidden;
  config.num_layers = 2;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 4;
  config.intermediate_size = config.expert_intermediate_size = kWidth;
  config.vocab_size = 7;
  config.max_position_embeddings = 64;
  config.rms_norm_eps = 1e-5f;
  config.rope_theta = 150000;
  config.rope_scaling = {.kind = RopeScaling::Kind::kYarn,
                         .factor = 4,
                         .original_max_position_embeddings = 16,
                         .truncate = false};
  config.qkv_bias = config.o_bias = true;
  config.layer_windows = {8, 0};
  config.num_experts = kExperts;
  config.experts_per_token = 2;
  config.normalise_expert_weights = true;
  ASSERT_TRUE(ValidateModelConfig(config).ok()) << ValidateModelConfig(config);

  const TempFolder folder;
  auto writer = HfFolderWriter::Create(folder.path("model"), bundle);
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::map<std::string, std::vector<float>> values;
  float next = 0;
  for (const TensorSpec& tensor : CanonicalTensors(config)) {
    std::vector<float>& all = values[tensor.name];
    for (int64_t i = 0; i < tensor.num_elements(); ++i) all.push_back(++next);
    const size_t half = all.size() / 2;
    ASSERT_TRUE(writer->Append(tensor.name, std::span(all).first(half)).ok());
    ASSERT_TRUE(writer->Append(tensor.name, std::span(all).subspan(half)).ok()) << tensor.name;
  }
  ASSERT_TRUE(writer->Finish().ok());

  const std::string weights = folder.path("model") + "/model.safetensors";
  const auto file = SafetensorsFile::Open(weights);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string prefix = "model.layers.1.mlp.experts.";
  const auto stored = [&](const char* name) {
    std::vector<float> all(
        static_cast<size_t>(file->tensors().find(prefix + name)->second.num_elements()));
    EXPECT_TRUE(file->ConvertTensor(prefix + name, all).ok());
    return all;
  };
  const std::vector<float> gate_up = stored("gate_up_proj"), down = stored("down_proj"),
                           gate_up_bias = stored("gate_up_proj_bias"),
                           down_bias = stored("down_proj_bias");
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = prefix + std::to_string(e) + ".";
    for (int64_t n = 0; n < kWidth; ++n) {
      for (int64_t k = 0; k < kHidden; ++k) {
        const size_t at = static_cast<size_t>(n * kHidden + k),
                     pair = static_cast<size_t>((e * kHidden + k) * 2 * kWidth + 2 * n);
        EXPECT_EQ(gate_up[pair], values[expert + "gate_proj.weight"][at]);
        EXPECT_EQ(gate_up[pair + 1], values[expert + "up_proj.weight"][at]);
        EXPECT_EQ(down[static_cast<size_t>((e * kWidth + n) * kHidden + k)],
                  values[expert + "down_proj.weight"][static_cast<size_t>(k * kWidth + n)]);
      }
      const size_t pair = static_cast<size_t>(e * 2 * kWidth + 2 * n);
      EXPECT_EQ(gate_up_bias[pair], values[expert + "gate_proj.bias"][static_cast<size_t>(n)]);
      EXPECT_EQ(gate_up_bias[pair + 1], values[expert + "up_proj.bias"][static_cast<size_t>(n)]);
    }
    for (int64_t n = 0; n < kHidden; ++n) {
      EXPECT_EQ(down_bias[static_cast<size_t>(e * kHidden + n)],
                values[expert + "down_proj.bias"][static_cast<size_t>(n)]);
    }
  }
  const auto source = OpenModelSource(folder.path("model"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config(), config);
  const auto read = ReadAll(**source);
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i], values[(*source)->tensors()[i].name]);

  // A tensor of U8 as in the published files.
  const std::string bytes = ReadBytes(weights);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  auto header = nlohmann::json::parse(bytes.substr(sizeof(length), length));
  nlohmann::json entry = header[prefix + "gate_up_proj"];
  header.erase(prefix + "gate_up_proj");
  entry["dtype"] = "U8";
  entry["shape"] = {gate_up.size() * sizeof(float)};
  header[prefix + "gate_up_proj_blocks"] = entry;
  const std::string changed = FileOf(header.dump(), 0) + bytes.substr(sizeof(length) + length);
  WriteBytes(weights, changed);
  const Status refused = OpenModelSource(folder.path("model")).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented) << refused;
  EXPECT_THAT(MessageOf(refused), HasSubstr("mlp.experts.gate_up_proj_blocks: MXFP4, dtype U8"));
}

TEST(HfFolderTest, ShardsAreReadThroughTheirIndex) {
  const TempFolder folder;
  WriteShards(folder, "model-2.safetensors");
  const auto sharded = OpenModelSource(folder.path());
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  const auto whole = OpenModelSource(CasePath("safetensors/tied_with_head"));
  EXPECT_EQ(ReadAll(**sharded), ReadAll(**whole));
}

TEST(HfFolderTest, AWrongIndexIsRefusedByFileAndField) {
  const std::string in_map = "model.safetensors.index.json: weight_map: model.norm.weight: ";
  const std::pair<const char*, std::string> places[] = {
      {"model-1.safetensors", in_map + "model-1.safetensors does not hold it"},
      {"../model-2.safetensors", in_map + "must be the name of a file"},
      {"", in_map + "must be the name of a file"},
      {"none", "none: cannot open"}};
  for (const auto& [place, words] : places) {
    const TempFolder folder;
    WriteShards(folder, place);
    const Status status = OpenModelSource(folder.path()).status();
    EXPECT_FALSE(status.ok()) << place;
    EXPECT_THAT(MessageOf(status), HasSubstr(words));
  }
  // A shard whose tensor the index places elsewhere, or not at all.
  const TempFolder folder;
  WriteShards(folder, "model-2.safetensors");
  std::string index = ReadBytes(folder.path("model.safetensors.index.json"));
  const std::string entry = "\"model.norm.weight\": \"model-2.safetensors\"";
  const size_t at = index.find(entry);
  ASSERT_NE(at, std::string::npos);
  index.replace(at, entry.size(), "\"extra\": \"model-2.safetensors\"");
  WriteBytes(folder.path("model.safetensors.index.json"), index);
  EXPECT_THAT(MessageOf(OpenModelSource(folder.path()).status()),
              HasSubstr("weight_map: extra: model-2.safetensors does not hold it"));
  for (const char* text : {"[]", "{\"weight_map\": 1}", "{", "{\"weight_map\": {\"w\": 1}}"}) {
    WriteBytes(folder.path("model.safetensors.index.json"), text);
    EXPECT_THAT(MessageOf(OpenModelSource(folder.path()).status()), HasSubstr("index.json"));
  }
}

TEST(HfFolderTest, HalfPrecisionTensorsAreWidenedExactly) {
  const auto whole =
      SafetensorsFile::Open(CasePath("safetensors/tied_with_head/model.safetensors"));
  ASSERT_TRUE(whole.ok());
  for (const bool bf16 : {true, false}) {
    // Every tensor holds the numbers 0, 1, 2, ... modulo 128, which both types have.
    std::string header = "{", data;
    for (const auto& [name, tensor] : whole->tensors()) {
      const size_t begin = data.size();
      for (int64_t i = 0; i < tensor.num_elements(); ++i) {
        const float value = static_cast<float>(i % 128);
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        uint16_t half = static_cast<uint16_t>(bits >> 16);
        if (!bf16) {
          half = value == 0
                     ? uint16_t{0}
                     : static_cast<uint16_t>(((bits >> 23) - 112) << 10 | (bits >> 13 & 1023));
        }
        data.append(reinterpret_cast<const char*>(&half), 2);
      }
      std::string shape;
      for (const int64_t n : tensor.shape) {
        shape += (shape.empty() ? "" : ", ") + std::to_string(n);
      }
      header += (header.size() > 1 ? ", \"" : "\"") + name + "\": {\"dtype\": \"" +
                (bf16 ? "BF16" : "F16") + "\", \"shape\": [" + shape + "], \"data_offsets\": [" +
                std::to_string(begin) + ", " + std::to_string(data.size()) + "]}";
    }
    const TempFolder folder;
    std::string file = FileOf(header + "}", 0);
    WriteBytes(folder.path("model.safetensors"), file + data);
    WriteBytes(folder.path("config.json"),
               ReadBytes(CasePath("safetensors/tied_with_head/config.json")));
    const auto model = OpenModelSource(folder.path());
    ASSERT_TRUE(model.ok()) << model.status();
    for (const std::vector<float>& values : ReadAll(**model)) {
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], static_cast<float>(i % 128)) << i;
      }
    }
  }
}

// The norm's 16 numbers, the last tensor of the file, in a type that no loader converts.
TEST(HfFolderTest, TypesWithoutAConversionAreRefusedByTensorAndType) {
  const std::string whole = ReadBytes(CasePath("safetensors/tied_with_head/model.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof(length));
  const std::string header = whole.substr(sizeof(length), length);
  const std::pair<const char*, size_t> types[] = {{"F64", 8}, {"I8", 1}, {"F8_E4M3", 1}};
  for (const auto& [type, bytes] : types) {
    SCOPED_TRACE(type);
    std::string changed = header;
    const size_t norm = changed.find("\"model.norm.weight\"");
    ASSERT_NE(norm, std::string::npos);
    const size_t dtype = changed.find("\"F32\"", norm);
    ASSERT_NE(dtype, std::string::npos);
    changed.replace(dtype, 5, std::string("\"") + type + "\"");
    const size_t begin = changed.find('[', changed.find("\"data_offsets\"", norm)) + 1;
    const size_t end = changed.find(']', begin);
    const size_t offset = std::stoul(changed.substr(begin));
    ASSERT_EQ(offset + 16 * sizeof(float), whole.size() - sizeof(length) - length);
    changed.replace(begin, end - begin,
                    std::to_string(offset) + ", " + std::to_string(offset + 16 * bytes));
    const TempFolder folder;
    WriteBytes(folder.path("model.safetensors"), FileOf(changed, 0) +
                                                     whole.substr(sizeof(length) + length, offset) +
                                                     std::string(16 * bytes, '\0'));
    WriteBytes(folder.path("config.json"),
               ReadBytes(CasePath("safetensors/tied_with_head/config.json")));
    const Status status = OpenModelSource(folder.path()).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status;
    EXPECT_THAT(MessageOf(status),
                HasSubstr(std::string("tensor model.norm.weight: dtype ") + type));
  }
}

TEST(HfFolderTest, TheDefaultTemplateOfTheTokenizerConfigIsRead) {
  const TempFolder folder;
  for (const char* leaf : {"config.json", "model.safetensors"}) {
    WriteBytes(folder.path(leaf),
               ReadBytes(CasePath(std::string("safetensors/tied_with_head/") + leaf)));
  }
  WriteBytes(folder.path("tokenizer_config.json"), R"({"chat_template": [
      {"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]})");
  auto model = OpenModelSource(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->chat_template(), "y");
  WriteBytes(folder.path("chat_template.jinja"), "z");
  model = OpenModelSource(folder.path());
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->chat_template(), "z");
}

TEST(HfFolderTest, NanInAWeightIsRefusedWithItsTensor) {
  const TempFolder folder;
  std::string bytes = ReadBytes(CasePath("safetensors/tied_with_head/model.safetensors"));
  for (size_t i = bytes.size() - 4; i < bytes.size(); ++i) bytes[i] = '\xff';  // end of model.norm
  WriteBytes(folder.path("model.safetensors"), bytes);
  WriteBytes(folder.path("config.json"),
             ReadBytes(CasePath("safetensors/tied_with_head/config.json")));
  const auto model = OpenModelSource(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<float> norm(16);
  const Status status = (*model)->ReadTensorF32("model.norm.weight", norm);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), HasSubstr("model.norm.weight: element 15"));
}

}  // namespace
}  // namespace titan::formats
