// SPDX-License-Identifier: Apache-2.0
#include "core/text/tokenizer_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/formats/json.h"
#include "core/text/known_patterns.h"
#include "core/text/piece_model.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

namespace titan::text {
namespace {

using formats::GgufTokenizer;
using formats::Json;

// Values of tokenizer.ggml.token_type.
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

Json PreTokenizerOf(const GgufPre& pre) {
  Json steps = Json::array();
  if (pre.individual_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  // ByteLevel has GPT-2's cut built in.
  const bool is_gpt2 = pre.patterns.size() == 1 && pre.patterns[0] == kGpt2Pattern;
  for (const std::string_view pattern : pre.patterns) {
    if (is_gpt2) break;
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pattern)}}},
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

// The scores merge any two neighbours whose joined text is a piece, also a character that is no
// piece itself; merges join pieces only. Unimplemented: a piece that is made of such a character.
Status CheckMergesSuffice(const std::map<std::string_view, size_t>& pieces,
                          std::string_view where) {
  const auto is_character = [](std::string_view text) {
    size_t end = 0;
    NextCodePoint(text, &end);
    return end == text.size();
  };
  for (const auto& [text, id] : pieces) {
    for (size_t cut = 0; NextCodePoint(text, &cut), cut < text.size();) {
      const std::string_view halves[2] = {text.substr(0, cut), text.substr(cut)};
      std::string_view foreign;  // the half that is no piece
      bool possible = true;
      for (const std::string_view half : halves) {
        if (pieces.contains(half)) continue;
        foreign = half;
        possible = possible && is_character(half);
      }
      if (!possible || foreign.empty()) continue;
      return Unimplemented(fmt::format(
          "{}: tokenizer.ggml.tokens: piece \"{}\" (id {}) is made with the character \"{}\", "
          "which is no piece: merges of tokenizer.json cannot produce it, texts would get other "
          "tokens; import the model without its tokenizer",
          where, text, id, foreign));
    }
  }
  return OkStatus();
}

// Merges that do what the scores say: every way to cut a piece into two pieces, the highest score
// first. (Where two cuts of one piece compete at overlapping places, scores decide by place and
// merges by their order; the pieces are the same.)
StatusOr<Json> PieceModelOf(const GgufTokenizer& gguf, std::string_view where) {
  Json vocabulary = Json::object();
  std::map<std::string_view, size_t> pieces;
  bool has_bytes = false;
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    // Added tokens are found in the raw text, where a space is a space.
    const bool is_piece = gguf.token_types[i] == kNormal || gguf.token_types[i] == kByte;
    vocabulary[is_piece ? gguf.tokens[i] : WithoutSpaceSigns(gguf.tokens[i])] = i;
    if (gguf.token_types[i] == kNormal) pieces.emplace(gguf.tokens[i], i);
    has_bytes = has_bytes || gguf.token_types[i] == kByte;
  }
  TITAN_RETURN_IF_ERROR(CheckMergesSuffice(pieces, where));
  struct Merge {
    float score;
    size_t merged, left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : pieces) {
    for (size_t cut = 0; NextCodePoint(text, &cut), cut < text.size();) {
      const auto left = pieces.find(text.substr(0, cut)), right = pieces.find(text.substr(cut));
      if (left == pieces.end() || right == pieces.end()) continue;
      merges.push_back({gguf.scores[id], id, left->second, right->second});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.merged, a.left, a.right) <
           std::tuple(-b.score, b.merged, b.left, b.right);
  });
  Json list = Json::array();
  for (const Merge& merge : merges) {
    list.push_back(Json::array({gguf.tokens[merge.left], gguf.tokens[merge.right]}));
  }
  const Json unk =
      gguf.unk_id < 0 ? Json(nullptr) : Json(gguf.tokens[static_cast<size_t>(gguf.unk_id)]);
  return Json{{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", unk},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", true},
              {"byte_fallback", has_bytes},
              {"ignore_merges", false},
              {"vocab", std::move(vocabulary)},
              {"merges", std::move(list)}};
}

Json SpaceNormalizerOf(const GgufTokenizer& gguf) {
  const Json replace = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceSign}};
  if (!gguf.add_space_prefix) return replace;
  return {
      {"type", "Sequence"},
      {"normalizers", Json::array({Json{{"type", "Prepend"}, {"prepend", kSpaceSign}}, replace})}};
}

Json SpaceDecoderOf(const GgufTokenizer& gguf) {
  Json steps = Json::array();
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceSign}}}, {"content", " "}});
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (gguf.add_space_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", steps}};
}

Json AddedTokensOf(const GgufTokenizer& gguf) {
  Json added = Json::array();
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const int32_t type = gguf.token_types[i];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    added.push_back(
        {{"id", i},
         {"content", gguf.model == "llama" ? WithoutSpaceSigns(gguf.tokens[i]) : gguf.tokens[i]},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", type != kUserDefined}});
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
  Json root = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", AddedTokensOf(gguf)},
               {"post_processor", PostProcessorOf(gguf)}};
  if (gguf.model == "llama") {
    root["normalizer"] = SpaceNormalizerOf(gguf);
    root["pre_tokenizer"] = nullptr;
    root["decoder"] = SpaceDecoderOf(gguf);
    TITAN_ASSIGN_OR_RETURN(root["model"], PieceModelOf(gguf, where));
  } else {
    TITAN_ASSIGN_OR_RETURN(const GgufPre pre, FindGgufPre(gguf.pre, where));
    root["normalizer"] = pre.nfc ? Json{{"type", "NFC"}} : Json(nullptr);
    root["pre_tokenizer"] = PreTokenizerOf(pre);
    root["decoder"] = {{"type", "ByteLevel"},
                       {"add_prefix_space", true},
                       {"trim_offsets", true},
                       {"use_regex", true}};
    root["model"] = ModelOf(gguf, pre);
  }
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
