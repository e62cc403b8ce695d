// SPDX-License-Identifier: Apache-2.0
// Tokenizer::FromJson: a tokenizer out of tokenizer.json (and the special ids of
// tokenizer_config.json). Every component of the file is either done exactly or refused by its
// name.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/formats/json.h"
#include "core/text/known_patterns.h"
#include "core/text/piece_model.h"
#include "core/text/tokenizer.h"

namespace titan::text {
namespace {

using formats::Json;
using formats::JsonFields;
using formats::ParseJson;

constexpr int64_t kMaxTokenId = (1 << 20) - 1;
constexpr int kMaxNesting = 8;  // of Sequence inside Sequence

class JsonLoader {
 public:
  JsonLoader(const Json& root, std::string_view where) : root_(root, std::string(where)) {}

  StatusOr<TokenizerParts> Load() {
    for (const char* field : {"truncation", "padding"}) {
      if (root_.Has(field)) return root_.Refuse(field, "is not covered, set it to null");
    }
    TITAN_RETURN_IF_ERROR(LoadNormalizer(root_.Value("normalizer"), 0));
    TITAN_RETURN_IF_ERROR(LoadModel());
    TITAN_RETURN_IF_ERROR(LoadAddedTokens());
    TITAN_RETURN_IF_ERROR(parts_.space_sign ? CheckNoPreTokenizer() : LoadPreTokenizers());
    TITAN_RETURN_IF_ERROR(LoadPostProcessor(root_.Value("post_processor"), 0));
    TITAN_RETURN_IF_ERROR(parts_.space_sign ? LoadSpaceSignDecoder() : CheckByteLevelDecoder());
    // Normalized contents are looked for as the normalizer would write them.
    for (AddedToken& token : normalized_) {
      if (parts_.nfc) {
        TITAN_ASSIGN_OR_RETURN(token.content, ToNfc(token.content));
      }
      if (!contents_.emplace(token.content + "\n1", true).second) {
        return root_.Error("added_tokens", fmt::format("\"{}\" stands twice", token.content));
      }
      parts_.added_normalized.Add(token);
    }
    return std::move(parts_);
  }

 private:
  // The object of a component and its "type".
  StatusOr<std::string> TypeOf(const Json& value, const char* field) const {
    if (!value.is_object()) return root_.Error(field, "must be an object");
    return JsonFields(value, Where(field)).String("type");
  }
  std::string Where(std::string_view field) const {
    return fmt::format("{}: {}", root_.where(), field);
  }
  // Calls load for each element of a component's list.
  template <typename Load>
  Status ForEach(const Json& value, const char* component, const char* list, int depth, Load load) {
    const Json& items = JsonFields(value, Where(component)).Value(list);
    if (!items.is_array() || depth >= kMaxNesting) {
      return root_.Error(component, fmt::format("{}: must be an array, nested at most {} deep",
                                                list, kMaxNesting));
    }
    for (const Json& item : items) TITAN_RETURN_IF_ERROR(load(item));
    return OkStatus();
  }

  Status SetEntry(TokenId id, const std::string& text, bool special) {
    if (static_cast<size_t>(id) >= parts_.entries.size()) {
      parts_.entries.resize(static_cast<size_t>(id) + 1);
    }
    parts_.entries[static_cast<size_t>(id)] = {text, special};
    return OkStatus();
  }

  Status LoadModel() {
    TITAN_ASSIGN_OR_RETURN(const std::string type, TypeOf(root_.Value("model"), "model"));
    if (type != "BPE") {
      return root_.Refuse("model", fmt::format("type \"{}\" is not covered (BPE)", type));
    }
    const JsonFields model(root_.Value("model"), Where("model"));
    TITAN_ASSIGN_OR_RETURN(const double dropout, model.NumberOr("dropout", 0, 1, 0));
    if (dropout != 0) return model.Refuse("dropout", "only 0 is covered");
    for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      TITAN_ASSIGN_OR_RETURN(const std::string affix, model.StringOr(field, ""));
      if (!affix.empty()) return model.Refuse(field, "is not covered");
    }
    if (parts_.space_sign) return LoadPieces(model);
    TITAN_ASSIGN_OR_RETURN(const bool byte_fallback, model.BoolOr("byte_fallback", false));
    if (byte_fallback) {
      return model.Refuse("byte_fallback",
                          "is covered with the normalizer Replace of \" \" by U+2581 only");
    }
    BytePairModel::Options options;
    TITAN_ASSIGN_OR_RETURN(options.ignore_merges, model.BoolOr("ignore_merges", false));
    TITAN_RETURN_IF_ERROR(LoadVocabulary(model, &options.vocabulary));
    TITAN_RETURN_IF_ERROR(LoadMerges(model, &options.merges));
    TITAN_ASSIGN_OR_RETURN(parts_.model, BytePairModel::Create(options, model.where()));
    if (model.Has("unk_token")) {
      TITAN_ASSIGN_OR_RETURN(const std::string unk, model.String("unk_token"));
      parts_.unk_id = parts_.model->FindEntry(unk);
      if (!parts_.model->bytes_without_token().empty()) {
        return model.Refuse("unk_token", "is covered only where every byte has a token");
      }
    }
    return OkStatus();
  }

  // SentencePiece's BPE: characters, with bytes for those that have no piece.
  Status LoadPieces(const JsonFields& model) {
    TITAN_ASSIGN_OR_RETURN(const bool byte_fallback, model.BoolOr("byte_fallback", false));
    TITAN_ASSIGN_OR_RETURN(const bool ignore_merges, model.BoolOr("ignore_merges", false));
    if (ignore_merges) return model.Refuse("ignore_merges", "only false is covered here");
    std::vector<std::pair<std::string, TokenId>> vocabulary;
    PieceModel::Options options;
    options.byte_tokens.fill(kNoToken);
    TITAN_RETURN_IF_ERROR(LoadVocabulary(model, &vocabulary));
    TITAN_RETURN_IF_ERROR(LoadMerges(model, &options.merges));
    for (auto& [text, id] : vocabulary) {
      const int byte = ByteOfEntry(text);
      if (byte_fallback && byte >= 0) options.byte_tokens[static_cast<size_t>(byte)] = id;
      options.pieces.push_back({std::move(text), id});
    }
    for (size_t byte = 0; byte_fallback && byte < options.byte_tokens.size(); ++byte) {
      if (options.byte_tokens[byte] != kNoToken) continue;
      return model.Error("byte_fallback", fmt::format("the vocabulary has no {}",
                                                      EntryOfByte(static_cast<uint8_t>(byte))));
    }
    if (model.Has("unk_token")) {
      TITAN_ASSIGN_OR_RETURN(const std::string unk, model.String("unk_token"));
      for (const PieceModel::Piece& piece : options.pieces) {
        if (piece.text == unk) options.unk = piece.id;
      }
      if (options.unk == kNoToken) {
        return model.Error("unk_token", fmt::format("\"{}\" is not in the vocabulary", unk));
      }
      parts_.unk_id = options.unk;
    }
    TITAN_ASSIGN_OR_RETURN(const bool fuse_unk, model.BoolOr("fuse_unk", false));
    if (!byte_fallback && !fuse_unk) {
      return model.Refuse("fuse_unk", "only true is covered where there are no byte tokens");
    }
    TITAN_ASSIGN_OR_RETURN(parts_.model, PieceModel::Create(options, model.where()));
    return OkStatus();
  }

  Status LoadVocabulary(const JsonFields& model,
                        std::vector<std::pair<std::string, TokenId>>* out) {
    const Json& vocabulary = model.Value("vocab");
    if (!vocabulary.is_object()) return model.Error("vocab", "must be an object");
    for (const auto& [entry, id] : vocabulary.items()) {
      if (!id.is_number_unsigned() || id > kMaxTokenId) {
        return model.Error("vocab",
                           fmt::format("\"{}\": id must lie in [0, {}]", entry, kMaxTokenId));
      }
      out->emplace_back(entry, id.get<TokenId>());
      TITAN_RETURN_IF_ERROR(SetEntry(id.get<TokenId>(), entry, false));
    }
    return OkStatus();
  }

  // Each merge is "left right" or ["left", "right"].
  static Status LoadMerges(const JsonFields& model,
                           std::vector<std::pair<std::string, std::string>>* out) {
    const Json& merges = model.Value("merges");
    if (!merges.is_array()) return model.Error("merges", "must be an array");
    for (size_t i = 0; i < merges.size(); ++i) {
      const Json& merge = merges[i];
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        out->emplace_back(merge[0], merge[1]);
        continue;
      }
      const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return model.Error("merges",
                           fmt::format("position {}: must be two tokens, as a pair or with "
                                       "one space between them",
                                       i));
      }
      out->emplace_back(text.substr(0, space), text.substr(space + 1));
    }
    return OkStatus();
  }

  Status LoadAddedTokens() {
    const Json& tokens = root_.Value("added_tokens");
    if (tokens.is_null()) return OkStatus();
    if (!tokens.is_array()) return root_.Error("added_tokens", "must be an array");
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string where = Where(fmt::format("added_tokens[{}]", i));
      if (!tokens[i].is_object()) return InvalidArgument(where + ": must be an object");
      const JsonFields fields(tokens[i], where);
      AddedToken token;
      TITAN_ASSIGN_OR_RETURN(const int64_t id, fields.Int("id", 0, kMaxTokenId));
      token.id = static_cast<TokenId>(id);
      TITAN_ASSIGN_OR_RETURN(token.content, fields.String("content"));
      TITAN_ASSIGN_OR_RETURN(token.special, fields.BoolOr("special", false));
      TITAN_ASSIGN_OR_RETURN(token.lstrip, fields.BoolOr("lstrip", false));
      TITAN_ASSIGN_OR_RETURN(token.rstrip, fields.BoolOr("rstrip", false));
      TITAN_ASSIGN_OR_RETURN(token.single_word, fields.BoolOr("single_word", false));
      TITAN_ASSIGN_OR_RETURN(token.normalized, fields.BoolOr("normalized", !token.special));
      if (token.content.empty()) return fields.Error("content", "is empty");
      if (!contents_.emplace(token.content, true).second) {
        return fields.Error("content", fmt::format("\"{}\" stands twice", token.content));
      }
      TITAN_RETURN_IF_ERROR(CheckId(fields, token));
      TITAN_RETURN_IF_ERROR(SetEntry(token.id, token.content, token.special));
      if (token.normalized && parts_.space_sign) {
        return fields.Refuse("normalized", "only false is covered where spaces become U+2581");
      }
      if (token.normalized) {
        normalized_.push_back(token);
      } else {
        parts_.added.Add(token);
      }
    }
    return OkStatus();
  }

  // The id must be the vocabulary's if it has the content, else free.
  Status CheckId(const JsonFields& fields, const AddedToken& token) const {
    const TokenId in_vocabulary = parts_.model->FindEntry(token.content);
    if (in_vocabulary != kNoToken && in_vocabulary != token.id) {
      return fields.Error("id", fmt::format("{} differs from the vocabulary's {} of \"{}\"",
                                            token.id, in_vocabulary, token.content));
    }
    if (in_vocabulary == kNoToken && static_cast<size_t>(token.id) < parts_.entries.size() &&
        !parts_.entries[static_cast<size_t>(token.id)].text.empty()) {
      return fields.Error("id", fmt::format("{} is already \"{}\"", token.id,
                                            parts_.entries[static_cast<size_t>(token.id)].text));
    }
    return OkStatus();
  }

  Status LoadNormalizer(const Json& value, int depth) {
    if (value.is_null()) return OkStatus();
    TITAN_ASSIGN_OR_RETURN(const std::string type, TypeOf(value, "normalizer"));
    if (type == "NFC") {
      parts_.nfc = true;
      return OkStatus();
    }
    if (type == "Prepend" || type == "Replace") return LoadSpaceSign(value, type);
    if (type == "Sequence") {
      return ForEach(value, "normalizer", "normalizers", depth,
                     [&](const Json& item) { return LoadNormalizer(item, depth + 1); });
    }
    return root_.Refuse("normalizer",
                        fmt::format("type \"{}\" is not covered (NFC, Prepend, Replace)", type));
  }

  // SentencePiece's spaces: Prepend of U+2581 (or not), then Replace of " " by it.
  Status LoadSpaceSign(const Json& value, const std::string& type) {
    const JsonFields fields(value, Where("normalizer"));
    if (parts_.nfc) return fields.Refuse("type", "\"" + type + "\" together with NFC");
    if (parts_.space_sign) return fields.Refuse("type", "\"" + type + "\" behind Replace");
    if (type == "Prepend") {
      TITAN_ASSIGN_OR_RETURN(const std::string text, fields.String("prepend"));
      if (text != kSpaceSign || parts_.space_prefix) {
        return fields.Refuse("prepend", "is covered for U+2581 only, once");
      }
      parts_.space_prefix = true;
      return OkStatus();
    }
    TITAN_ASSIGN_OR_RETURN(const std::string content, fields.String("content"));
    if (content != kSpaceSign || fields.Value("pattern") != Json{{"String", " "}}) {
      return fields.Refuse("pattern", "is covered for \" \" with content U+2581 only");
    }
    parts_.space_sign = true;
    return OkStatus();
  }

  Status LoadPreTokenizers() {
    if (parts_.space_prefix) return root_.Refuse("normalizer", "Prepend without Replace");
    TITAN_RETURN_IF_ERROR(LoadPreTokenizer(root_.Value("pre_tokenizer"), 0));
    if (has_byte_level_) return OkStatus();
    return root_.Refuse("pre_tokenizer",
                        "only byte-level tokenizers (ByteLevel) are covered, and SentencePiece's "
                        "with the normalizer Replace");
  }

  // Behind Replace no space is left that a cut at spaces would find.
  Status CheckNoPreTokenizer() const {
    const Json& value = root_.Value("pre_tokenizer");
    if (value.is_null()) return OkStatus();
    const bool at_spaces = value.is_object() && value.value("type", Json()) == "Split" &&
                           value.value("pattern", Json()) == Json{{"String", " "}} &&
                           value.value("behavior", Json()) != "Removed" &&
                           value.value("invert", Json(false)) == false;
    if (at_spaces) return OkStatus();
    return root_.Refuse("pre_tokenizer", "only null is covered where spaces become U+2581");
  }

  Status LoadPreTokenizer(const Json& value, int depth) {
    TITAN_ASSIGN_OR_RETURN(const std::string type, TypeOf(value, "pre_tokenizer"));
    const JsonFields fields(value, Where("pre_tokenizer"));
    if (type == "Sequence") {
      return ForEach(value, "pre_tokenizer", "pretokenizers", depth,
                     [&](const Json& item) { return LoadPreTokenizer(item, depth + 1); });
    }
    // Behind ByteLevel the pieces are in the byte alphabet: another cut would see other characters.
    if (has_byte_level_) return fields.Refuse("type", "\"" + type + "\" behind ByteLevel");
    if (type == "Digits") {
      TITAN_ASSIGN_OR_RETURN(const bool individual, fields.BoolOr("individual_digits", false));
      parts_.pre_tokenizer.AddDigits(individual);
      return OkStatus();
    }
    if (type == "ByteLevel") {
      has_byte_level_ = true;
      TITAN_ASSIGN_OR_RETURN(const bool prefix_space, fields.BoolOr("add_prefix_space", true));
      if (prefix_space) return fields.Refuse("add_prefix_space", "only false is covered");
      TITAN_ASSIGN_OR_RETURN(const bool use_regex, fields.BoolOr("use_regex", true));
      if (!use_regex) return OkStatus();
      return parts_.pre_tokenizer.AddRegex(kGpt2Pattern, PreTokenizer::Gaps::kKeep, fields.where());
    }
    if (type == "Split") return LoadSplit(fields);
    return fields.Refuse("type", fmt::format("\"{}\" is not covered", type));
  }

  Status LoadSplit(const JsonFields& fields) {
    TITAN_ASSIGN_OR_RETURN(const std::string behavior, fields.String("behavior"));
    TITAN_ASSIGN_OR_RETURN(const bool invert, fields.BoolOr("invert", false));
    PreTokenizer::Gaps gaps = PreTokenizer::Gaps::kKeep;
    if (behavior == "Removed" && invert) {
      gaps = PreTokenizer::Gaps::kDrop;
    } else if (behavior != "Isolated") {
      return fields.Refuse(
          "behavior",
          fmt::format("\"{}\" with invert {} is not covered (Isolated)", behavior, invert));
    }
    const Json& pattern = fields.Value("pattern");
    const std::string where = fields.where() + ": pattern";
    if (pattern.is_object() && pattern.size() == 1) {
      const std::string& kind = pattern.begin().key();
      const Json& text = pattern.begin().value();
      if (kind == "Regex" && text.is_string()) {
        return parts_.pre_tokenizer.AddRegex(text.get<std::string>(), gaps, where);
      }
      if (kind == "String" && text.is_string()) {
        return parts_.pre_tokenizer.AddLiteral(text.get<std::string>(), gaps, where);
      }
    }
    return fields.Error("pattern", "must be {\"Regex\": text} or {\"String\": text}");
  }

  Status LoadPostProcessor(const Json& value, int depth) {
    if (value.is_null()) return OkStatus();
    TITAN_ASSIGN_OR_RETURN(const std::string type, TypeOf(value, "post_processor"));
    if (type == "ByteLevel") return OkStatus();  // offsets only, which are not kept here
    if (type == "Sequence") {
      return ForEach(value, "post_processor", "processors", depth,
                     [&](const Json& item) { return LoadPostProcessor(item, depth + 1); });
    }
    if (type == "TemplateProcessing") return LoadTemplate(value);
    return root_.Refuse("post_processor", fmt::format("type \"{}\" is not covered", type));
  }

  // The form for one text: special tokens around one sequence.
  Status LoadTemplate(const Json& value) {
    if (!parts_.prefix.empty() || !parts_.suffix.empty()) {
      return root_.Refuse("post_processor", "two templates");
    }
    const JsonFields fields(value, Where("post_processor"));
    const Json& single = fields.Value("single");
    if (!single.is_array()) return fields.Error("single", "must be an array");
    bool behind = false;
    for (const Json& piece : single) {
      if (piece.is_object() && piece.contains("Sequence") && !behind) {
        behind = true;
        continue;
      }
      if (!piece.is_object() || !piece.contains("SpecialToken")) {
        return fields.Refuse("single", "must be one sequence with special tokens around it");
      }
      const Json& token = piece["SpecialToken"];
      if (!token.is_object()) return fields.Error("single", "SpecialToken must be an object");
      TITAN_ASSIGN_OR_RETURN(const std::string name,
                             JsonFields(token, fields.where()).String("id"));
      TITAN_RETURN_IF_ERROR(AddTemplateIds(fields, name, behind ? &parts_.suffix : &parts_.prefix));
    }
    if (!behind) return fields.Error("single", "has no sequence");
    return OkStatus();
  }

  Status AddTemplateIds(const JsonFields& fields, const std::string& name,
                        std::vector<TokenId>* out) const {
    const Json& specials = fields.Value("special_tokens");
    const auto it = specials.is_object() ? specials.find(name) : specials.end();
    if (it == specials.end() || !it->is_object() || !it->contains("ids") ||
        !(*it)["ids"].is_array()) {
      return fields.Error("special_tokens", fmt::format("\"{}\" has no list of ids", name));
    }
    for (const Json& id : (*it)["ids"]) {
      if (!id.is_number_unsigned() || id >= parts_.entries.size()) {
        return fields.Error("special_tokens",
                            fmt::format("\"{}\": id {} has no token", name, id.dump()));
      }
      out->push_back(id.get<TokenId>());
    }
    return OkStatus();
  }

  // Replace of U+2581 by " ", ByteFallback, Fuse, and Strip of one space at the beginning or not.
  Status LoadSpaceSignDecoder() {
    const Json want_replace = {
        {"type", "Replace"}, {"pattern", {{"String", kSpaceSign}}}, {"content", " "}};
    const Json want_strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
    const Json& decoder = root_.Value("decoder");
    const Json* list = nullptr;
    if (decoder.is_object() && decoder.value("type", Json()) == "Sequence") {
      const auto it = decoder.find("decoders");
      if (it != decoder.end() && it->is_array()) list = &*it;
    }
    const Json rest[] = {want_replace, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, want_strip};
    bool good = list != nullptr && (list->size() == 3 || list->size() == 4);
    for (size_t i = 0; good && i < list->size(); ++i) good = (*list)[i] == rest[i];
    if (!good) {
      return root_.Refuse("decoder",
                          "only a Sequence of Replace (U+2581 by a space), ByteFallback, Fuse and, "
                          "or not, Strip of one space is covered here");
    }
    parts_.strip_space = list->size() == 4;
    return OkStatus();
  }

  Status CheckByteLevelDecoder() const {
    TITAN_ASSIGN_OR_RETURN(const std::string type, TypeOf(root_.Value("decoder"), "decoder"));
    if (type == "ByteLevel") return OkStatus();
    return root_.Refuse("decoder", fmt::format("type \"{}\" is not covered (ByteLevel)", type));
  }

  JsonFields root_;
  TokenizerParts parts_;
  std::map<std::string, bool> contents_;  // of added tokens; normalized forms end in "\n1"
  std::vector<AddedToken> normalized_;
  bool has_byte_level_ = false;
};

// A special token of tokenizer_config.json: a text, or an object with its content.
StatusOr<TokenId> NamedToken(const JsonFields& fields, const char* field,
                             const Tokenizer& tokenizer) {
  if (!fields.Has(field)) return kNoToken;
  const Json& value = fields.Value(field);
  const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!content.is_string()) return fields.Error(field, "must be a text");
  const TokenId id = tokenizer.FindToken(content.get<std::string>());
  if (id == kNoToken) {
    return fields.Error(field, fmt::format("\"{}\" is not a token", content.get<std::string>()));
  }
  return id;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json,
                                                         std::string_view tokenizer_config_json,
                                                         std::string_view where) {
  const std::string name = fmt::format("{}: tokenizer.json", where);
  TITAN_ASSIGN_OR_RETURN(const Json root, ParseJson(tokenizer_json, name));
  if (!root.is_object()) return InvalidArgument(name + ": must be an object");
  TITAN_ASSIGN_OR_RETURN(TokenizerParts parts, JsonLoader(root, name).Load());
  std::unique_ptr<Tokenizer> tokenizer = Create(std::move(parts));
  if (tokenizer_config_json.empty()) return tokenizer;

  const std::string config_name = fmt::format("{}: tokenizer_config.json", where);
  TITAN_ASSIGN_OR_RETURN(const Json config, ParseJson(tokenizer_config_json, config_name));
  if (!config.is_object()) return InvalidArgument(config_name + ": must be an object");
  const JsonFields fields(config, config_name);
  const std::pair<const char*, TokenId*> ids[] = {{"bos_token", &tokenizer->parts_.bos_id},
                                                  {"eos_token", &tokenizer->parts_.eos_id},
                                                  {"pad_token", &tokenizer->parts_.pad_id},
                                                  {"unk_token", &tokenizer->parts_.unk_id}};
  for (const auto& [field, id] : ids) {
    TITAN_ASSIGN_OR_RETURN(const TokenId found, NamedToken(fields, field, *tokenizer));
    if (found != kNoToken) *id = found;
  }
  return tokenizer;
}

}  // namespace titan::text
