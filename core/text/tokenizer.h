// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer: text to token ids and back, for byte-level BPE vocabularies and SentencePiece's BPE
// with byte fallback, out of GGUF metadata or a tokenizer.json. What the file asks for and this
// does not do is refused on loading, by name.
//
//   text -> valid UTF-8 -> added tokens -> normalizer -> added tokens (normalized) -> pre-tokenizer
//   -> BPE
//
// Equal inputs give equal ids on every machine. Const after loading; any thread.
#ifndef TITAN_CORE_TEXT_TOKENIZER_H_
#define TITAN_CORE_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/formats/model_source.h"
#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/utf8.h"

namespace titan::text {

struct EncodeOptions {
  // Add what the tokenizer puts around a text (for example a token that begins every sequence). Off
  // for rendered chats: their template writes it.
  bool add_special = false;
  // Read special tokens that are spelled out in the text as such. Off for text from outside that
  // must not be able to end a turn.
  bool parse_special = true;
};

// What a loader hands to Tokenizer::Create.
struct TokenizerParts {
  struct Entry {
    std::string text;  // as in the file; "" = no token of this id
    bool special = false;
  };
  std::vector<Entry> entries;  // by id
  std::unique_ptr<TokenModel> model;
  PreTokenizer pre_tokenizer;
  AddedTokens added;             // looked for in the raw text
  AddedTokens added_normalized;  // looked for in the normalized text
  bool nfc = false;
  // SentencePiece's form: entries are spelled with kSpaceSign for spaces and "<0x0A>" for bytes
  // instead of the byte alphabet, and the normalizer writes kSpaceSign.
  bool space_sign = false;
  bool space_prefix = false;            // one more kSpaceSign before each text between added tokens
  bool strip_space = false;             // one space that begins a decoded text is left out
  std::vector<TokenId> prefix, suffix;  // of add_special
  TokenId bos_id = kNoToken, eos_id = kNoToken, pad_id = kNoToken, unk_id = kNoToken;
};

class Tokenizer {
 public:
  // `where` stands first in messages, for example the path. InvalidArgument: malformed, naming the
  // field. Unimplemented: not covered, by name. NotFound (FromMaterial): the model has no
  // tokenizer.
  static StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const formats::GgufTokenizer& gguf,
                                                       std::string_view where);
  // tokenizer_config_json names the special ids; "" = it does not exist.
  static StatusOr<std::unique_ptr<Tokenizer>> FromJson(std::string_view tokenizer_json,
                                                       std::string_view tokenizer_config_json,
                                                       std::string_view where);
  static StatusOr<std::unique_ptr<Tokenizer>> FromMaterial(
      const formats::TokenizerMaterial& material, std::string_view where);
  // For the loaders.
  static std::unique_ptr<Tokenizer> Create(TokenizerParts parts);

  // Bytes that are not UTF-8 are repaired first (utf8.h). A byte that the vocabulary has no token
  // for is left out: bytes_without_token(). Internal, ResourceExhausted: the regular expression
  // engine or memory gave up.
  StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                        const EncodeOptions& options = {}) const;

  // The text of the ids: their bytes joined, then repaired. An id without a token (ids of a padded
  // vocabulary) gives nothing; skip_special leaves special tokens out.
  std::string Decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // One past the largest id that has a token.
  TokenId vocab_size() const { return static_cast<TokenId>(parts_.entries.size()); }
  // The entry as the file spells it ("Ġthe"), and the bytes it decodes to; "" if id has no token.
  std::string_view TokenText(TokenId id) const;
  std::string_view TokenBytes(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  // A decoded text loses one space at its beginning.
  bool strips_space() const { return parts_.strip_space; }
  // The id whose TokenText is `text`; kNoToken if there is none.
  TokenId FindToken(std::string_view text) const;

  TokenId bos_id() const { return parts_.bos_id; }  // kNoToken: none; so the others
  TokenId eos_id() const { return parts_.eos_id; }
  TokenId pad_id() const { return parts_.pad_id; }
  TokenId unk_id() const { return parts_.unk_id; }
  std::vector<uint8_t> bytes_without_token() const { return parts_.model->bytes_without_token(); }

 private:
  explicit Tokenizer(TokenizerParts parts);
  Status EncodeText(std::string_view text, bool parse_special, std::vector<TokenId>* out) const;
  Status EncodePieces(std::string_view text, std::vector<TokenId>* out) const;

  TokenizerParts parts_;
  std::vector<std::string> bytes_;  // by id
};

// Decodes ids one at a time: Push returns text as soon as it is certain, which is when what is held
// does not end in U+FFFD; the concatenation of all returns is Decode of all ids. The tokenizer must
// outlive it. One thread.
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that became certain with this id; "" = nothing yet.
  std::string Push(TokenId id);
  // Ends the stream: what was held.
  std::string Finish();

 private:
  std::string TakeHeld();

  const Tokenizer& tokenizer_;
  const bool skip_special_;
  Utf8Repairer repairer_;
  std::string held_;      // repaired, but ends in U+FFFD
  bool started_ = false;  // text was returned
};

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_TOKENIZER_H_
