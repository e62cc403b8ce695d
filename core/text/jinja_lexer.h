// SPDX-License-Identifier: Apache-2.0
//
// Splits a chat template into tokens, with the white space rules that chat templates are written
// for (trim_blocks and lstrip_blocks on, one trailing newline dropped, - and + marks). Pure; throws
// Raise with "line N: ..." on a template that cannot be read.
#ifndef TITAN_CORE_TEXT_JINJA_LEXER_H_
#define TITAN_CORE_TEXT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "core/text/jinja_value.h"

namespace titan::text::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  Value value;  // kInteger, kFloat
};

[[noreturn]] void FailAt(int line, std::string message);  // kInvalidArgument, "line N: message"

// The last token is kEnd.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_LEXER_H_
