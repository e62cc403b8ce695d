// SPDX-License-Identifier: Apache-2.0
//
// Reads a chat template into its tree. Unknown tags, filters and tests are refused here, with their
// line, so that a template which parses never loses a part silently. Pure; throws Raise with "line
// N: ...".
#ifndef TITAN_CORE_TEXT_JINJA_PARSER_H_
#define TITAN_CORE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "core/text/jinja_ast.h"

namespace titan::text::jinja {

// Expressions and blocks nest at most this deep.
inline constexpr int kMaxExprDepth = 200;
inline constexpr int kMaxBlockDepth = 64;

Block ParseTemplate(std::string_view source);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_PARSER_H_
