// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json: loaded, a text encoded, decoded whole and as a stream: both give the same text.
#include <cstdint>
#include <string_view>

#include "core/text/tokenizer.h"

using namespace titan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = text::Tokenizer::FromJson(text, "", "fuzz");
  if (!tokenizer.ok()) return 0;
  text::EncodeOptions options;
  options.add_special = true;
  // The file's own end is a text that holds its tokens.
  for (const std::string_view sample :
       {std::string_view("hello the  world 123\n\n\t\xc3\xa9\xe2\x96\x81 <mark>!"),
        text.substr(text.size() - std::min<size_t>(text.size(), 200))}) {
    const auto ids = (*tokenizer)->Encode(sample, options);
    if (!ids.ok()) continue;
    (void)(*tokenizer)->Decode(*ids);
    (void)(*tokenizer)->Decode(*ids, /*skip_special=*/true);
    text::DecodeStream stream(**tokenizer);
    std::string joined;
    for (const TokenId id : *ids) joined += stream.Push(id);
    joined += stream.Finish();
    if (joined != (*tokenizer)->Decode(*ids)) std::abort();
  }
  return 0;
}
