// SPDX-License-Identifier: Apache-2.0
#include "core/text/tokenizer_export.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "core/formats/json.h"
#include "core/text/known_patterns.h"
#include "core/text/tokenizer.h"

namespace titan::text {
namespace {

using formats::GgufTokenizer;
using formats::Json;

constexpr int32_t kControl = 3, kUserDefined = 4;  // values of tokenizer.ggml.token_type

Json PreTokenizerOf(const GgufPre& pre) {
  Json steps = Json::array();
  if (pre.individual_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  const bool is_gpt2 = pre.pattern == kGpt2Pattern;  // ByteLevel has it built in
  if (!is_gpt2) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pre.pattern)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", is_gpt2}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

// Null unless the tokenizer puts something around a text.
Json PostProcessorOf(const GgufTokenizer& gguf) {
  Json single = Json::array(), specials = Json::object();
  const auto add = [&](int32_t id) {
    const std::string& text = gguf.tokens[static_cast<size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    specials[text] = {{"id", text}, {"ids", Json::array({id})}, {"tokens", Json::array({text})}};
  };
  if (gguf.add_bos) add(gguf.bos_id);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (gguf.add_eos) add(gguf.eos_id);
  if (single.size() == 1) return nullptr;
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", specials}};
}

Json ModelOf(const GgufTokenizer& gguf, const GgufPre& pre) {
  Json vocabulary = Json::object(), merges = Json::array();
  for (size_t i = 0; i < gguf.tokens.size(); ++i) vocabulary[gguf.tokens[i]] = i;
  for (const std::string& merge : gguf.merges) {
    const size_t space = merge.find(' ', 1);
    merges.push_back(Json::array({merge.substr(0, space), merge.substr(space + 1)}));
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", pre.ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json AddedTokensOf(const GgufTokenizer& gguf) {
  Json added = Json::array();
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const int32_t type = gguf.token_types[i];
    if (type != kControl && type != kUserDefined) continue;
    added.push_back({{"id", i},
                     {"content", gguf.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControl}});
  }
  return added;
}

}  // namespace

StatusOr<formats::TokenizerMaterial> ToHfTokenizer(const formats::TokenizerMaterial& material,
                                                   std::string_view where) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> checked,
                         Tokenizer::FromMaterial(material, where));
  if (!material.gguf.has_value()) return material;
  GgufTokenizer gguf = *material.gguf;
  gguf.token_types.resize(gguf.tokens.size(), 1);
  TITAN_ASSIGN_OR_RETURN(const GgufPre pre, FindGgufPre(gguf.pre, where));
  const Json normalizer = pre.nfc ? Json{{"type", "NFC"}} : Json(nullptr);
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", AddedTokensOf(gguf)},
                     {"normalizer", normalizer},
                     {"pre_tokenizer", PreTokenizerOf(pre)},
                     {"post_processor", PostProcessorOf(gguf)},
                     {"decoder",
                      {{"type", "ByteLevel"},
                       {"add_prefix_space", true},
                       {"trim_offsets", true},
                       {"use_regex", true}}},
                     {"model", ModelOf(gguf, pre)}};
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, int32_t> ids[] = {{"bos_token", gguf.bos_id},
                                                 {"eos_token", gguf.eos_id},
                                                 {"pad_token", gguf.pad_id},
                                                 {"unk_token", gguf.unk_id}};
  for (const auto& [field, id] : ids) {
    if (id >= 0) config[field] = gguf.tokens[static_cast<size_t>(id)];
  }
  formats::TokenizerMaterial out;
  out.tokenizer_json = root.dump() + "\n";
  out.tokenizer_config_json = config.dump(2) + "\n";
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> reads_back,
                         Tokenizer::FromMaterial(out, where));
  return out;
}

}  // namespace titan::text
