// SPDX-License-Identifier: Apache-2.0
//
// The expression half of the template parser, and the token stream that both halves read.
#ifndef TITAN_CORE_TEXT_JINJA_EXPR_PARSER_H_
#define TITAN_CORE_TEXT_JINJA_EXPR_PARSER_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/jinja_ast.h"
#include "core/text/jinja_lexer.h"

namespace titan::text::jinja {

class ExprParser {
 public:
  explicit ExprParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Current() const { return tokens_[pos_]; }
  const Token& Next();  // returns the current token and moves behind it
  bool AtOperator(std::string_view op) const;
  bool AtName(std::string_view name) const;
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);
  void ExpectOperator(std::string_view op);
  void Expect(TokenKind kind, std::string_view what);
  std::string ExpectName(std::string_view what);
  [[noreturn]] void Unexpected(std::string_view expected) const;

  ExprPtr ParseExpression();
  // One expression, or a tuple when commas follow.
  ExprPtr ParseTuple(bool with_conditional = true);
  // What for, set and with assign to: names, tuples of names and, for set, namespace.attribute.
  ExprPtr ParseTarget(bool allow_namespace);
  // | filter | filter ... applied to `input` (null: to what the block holds).
  ExprPtr ParseFilterChain(ExprPtr input, bool first_is_inline);
  ExprPtr ParsePostfixAfterPrimary();

  // Names that a macro's body reads decide what its calls accept.
  struct MacroUse {
    bool caller = false;
    bool varargs = false;
    bool kwargs = false;
  };
  std::vector<MacroUse>& macro_stack() { return macro_stack_; }

 private:
  ExprPtr Make(ExprKind kind, int line) const;
  ExprPtr Finish(ExprPtr expr) const;  // sets the depth, refuses too deep trees
  ExprPtr Binary(ExprKind kind, std::string op, int line, ExprPtr left, ExprPtr right) const;
  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  ExprPtr ParseCompare();
  ExprPtr ParseSum();
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  ExprPtr ParseUnary(bool with_filter);
  ExprPtr ParsePrimary();
  ExprPtr ParsePostfix(ExprPtr expr);
  ExprPtr ParseFilterExpr(ExprPtr expr);
  ExprPtr ParseSubscript(ExprPtr expr);
  ExprPtr ParseSubscribed();
  ExprPtr ParseTest(ExprPtr expr);
  ExprPtr ParseDict();
  void ParseArguments(Expr* call);
  bool AtTupleEnd() const;
  ExprPtr ParseTargetItem(bool allow_namespace);

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;  // of the recursion
  std::vector<MacroUse> macro_stack_;
};

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_EXPR_PARSER_H_
