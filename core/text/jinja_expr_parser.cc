// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_expr_parser.h"

#include <algorithm>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_parser.h"

namespace titan::text::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText:
      return "text";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

// Counts a recursion of the parser for as long as it lives.
class DepthGuard {
 public:
  DepthGuard(int* depth, int line) : depth_(depth) {
    if (*depth_ >= kMaxExprDepth) {
      FailAt(line, "the expression nests deeper than " + std::to_string(kMaxExprDepth));
    }
    ++*depth_;
  }
  ~DepthGuard() { --*depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int* depth_;
};

}  // namespace

const Token& ExprParser::Next() {
  const Token& token = tokens_[pos_];
  if (token.kind != TokenKind::kEnd) ++pos_;
  return token;
}
bool ExprParser::AtOperator(std::string_view op) const {
  return Current().kind == TokenKind::kOperator && Current().text == op;
}
bool ExprParser::AtName(std::string_view name) const {
  return Current().kind == TokenKind::kName && Current().text == name;
}
bool ExprParser::SkipOperator(std::string_view op) {
  if (!AtOperator(op)) return false;
  Next();
  return true;
}
bool ExprParser::SkipName(std::string_view name) {
  if (!AtName(name)) return false;
  Next();
  return true;
}
void ExprParser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) Unexpected("'" + std::string(op) + "'");
}
void ExprParser::Expect(TokenKind kind, std::string_view what) {
  if (Current().kind != kind) Unexpected(what);
  Next();
}
std::string ExprParser::ExpectName(std::string_view what) {
  if (Current().kind != TokenKind::kName) Unexpected(what);
  return Next().text;
}
void ExprParser::Unexpected(std::string_view expected) const {
  FailAt(Current().line, "expected " + std::string(expected) + ", found " + Describe(Current()));
}

ExprPtr ExprParser::Make(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

ExprPtr ExprParser::Finish(ExprPtr expr) const {
  int depth = 0;
  const auto see = [&depth](const ExprPtr& e) {
    if (e != nullptr) depth = std::max(depth, e->depth);
  };
  for (const auto& e : expr->children) see(e);
  for (const auto& e : expr->arguments) see(e);
  for (const auto& e : expr->keywords) see(e.second);
  see(expr->star);
  see(expr->double_star);
  expr->depth = depth + 1;
  if (expr->depth > kMaxExprDepth) {
    FailAt(expr->line, "the expression nests deeper than " + std::to_string(kMaxExprDepth));
  }
  return expr;
}

ExprPtr ExprParser::Binary(ExprKind kind, std::string op, int line, ExprPtr left,
                           ExprPtr right) const {
  ExprPtr expr = Make(kind, line);
  expr->name = std::move(op);
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return Finish(std::move(expr));
}

ExprPtr ExprParser::ParseExpression() {
  const DepthGuard guard(&depth_, Current().line);
  ExprPtr expr = ParseOr();
  while (AtName("if")) {
    ExprPtr conditional = Make(ExprKind::kConditional, Next().line);
    conditional->children.push_back(ParseOr());
    conditional->children.push_back(std::move(expr));
    conditional->children.push_back(SkipName("else") ? ParseExpression() : nullptr);
    expr = Finish(std::move(conditional));
  }
  return expr;
}

ExprPtr ExprParser::ParseOr() {
  ExprPtr left = ParseAnd();
  while (AtName("or")) {
    const int line = Next().line;
    left = Binary(ExprKind::kOr, "or", line, std::move(left), ParseAnd());
  }
  return left;
}

ExprPtr ExprParser::ParseAnd() {
  ExprPtr left = ParseNot();
  while (AtName("and")) {
    const int line = Next().line;
    left = Binary(ExprKind::kAnd, "and", line, std::move(left), ParseNot());
  }
  return left;
}

ExprPtr ExprParser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const DepthGuard guard(&depth_, Current().line);
  ExprPtr expr = Make(ExprKind::kNot, Next().line);
  expr->children.push_back(ParseNot());
  return Finish(std::move(expr));
}

ExprPtr ExprParser::ParseCompare() {
  ExprPtr left = ParseSum();
  ExprPtr expr;
  while (true) {
    std::string op;
    const int line = Current().line;
    if (AtName("in")) {
      op = "in";
    } else if (AtName("not") && tokens_[pos_ + 1].kind == TokenKind::kName &&
               tokens_[pos_ + 1].text == "in") {
      Next();
      op = "not in";
    } else if (AtOperator("==") || AtOperator("!=") || AtOperator("<") || AtOperator("<=") ||
               AtOperator(">") || AtOperator(">=")) {
      op = Current().text;
    } else {
      break;
    }
    Next();
    if (expr == nullptr) {
      expr = Make(ExprKind::kCompare, line);
      expr->children.push_back(std::move(left));
    }
    expr->operators.push_back(op);
    expr->children.push_back(ParseSum());
  }
  return expr == nullptr ? std::move(left) : Finish(std::move(expr));
}

ExprPtr ExprParser::ParseSum() {
  ExprPtr left = ParseConcat();
  while (AtOperator("+") || AtOperator("-")) {
    const Token& op = Next();
    left = Binary(ExprKind::kBinary, op.text, op.line, std::move(left), ParseConcat());
  }
  return left;
}

ExprPtr ExprParser::ParseConcat() {
  ExprPtr first = ParseProduct();
  if (!AtOperator("~")) return first;
  ExprPtr expr = Make(ExprKind::kConcat, Current().line);
  expr->children.push_back(std::move(first));
  while (SkipOperator("~")) expr->children.push_back(ParseProduct());
  return Finish(std::move(expr));
}

ExprPtr ExprParser::ParseProduct() {
  ExprPtr left = ParsePower();
  while (AtOperator("*") || AtOperator("/") || AtOperator("//") || AtOperator("%")) {
    const Token& op = Next();
    left = Binary(ExprKind::kBinary, op.text, op.line, std::move(left), ParsePower());
  }
  return left;
}

ExprPtr ExprParser::ParsePower() {
  ExprPtr left = ParseUnary(true);
  while (AtOperator("**")) {
    const int line = Next().line;
    left = Binary(ExprKind::kBinary, "**", line, std::move(left), ParseUnary(true));
  }
  return left;
}

ExprPtr ExprParser::ParseUnary(bool with_filter) {
  ExprPtr expr;
  if (AtOperator("-") || AtOperator("+")) {
    const DepthGuard guard(&depth_, Current().line);
    const Token& op = Next();
    expr = Make(ExprKind::kUnary, op.line);
    expr->name = op.text;
    expr->children.push_back(ParseUnary(false));
    expr = Finish(std::move(expr));
  } else {
    expr = ParsePrimary();
  }
  expr = ParsePostfix(std::move(expr));
  return with_filter ? ParseFilterExpr(std::move(expr)) : std::move(expr);
}

ExprPtr ExprParser::ParsePrimary() {
  const DepthGuard guard(&depth_, Current().line);
  const Token& token = Current();
  ExprPtr expr = Make(ExprKind::kConst, token.line);
  switch (token.kind) {
    case TokenKind::kName:
      Next();
      if (token.text == "true" || token.text == "True") {
        expr->value = Value::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        expr->value = Value::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        expr->value = Value::None();
      } else {
        expr->kind = ExprKind::kName;
        expr->name = token.text;
        for (MacroUse& use : macro_stack_) {
          use.caller |= token.text == "caller";
          use.varargs |= token.text == "varargs";
          use.kwargs |= token.text == "kwargs";
        }
      }
      return expr;
    case TokenKind::kString: {
      std::string text;
      while (Current().kind == TokenKind::kString) text += Next().text;
      expr->value = Value::String(std::move(text));
      return expr;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      expr->value = Next().value;
      return expr;
    default:
      break;
  }
  if (SkipOperator("(")) {
    if (SkipOperator(")")) {
      expr->kind = ExprKind::kTuple;
      return expr;
    }
    expr = ParseTuple();
    ExpectOperator(")");
    return expr;
  }
  if (SkipOperator("[")) {
    expr->kind = ExprKind::kList;
    while (!AtOperator("]")) {
      if (!expr->children.empty()) ExpectOperator(",");
      if (AtOperator("]")) break;
      expr->children.push_back(ParseExpression());
    }
    ExpectOperator("]");
    return Finish(std::move(expr));
  }
  if (AtOperator("{")) return ParseDict();
  Unexpected("an expression");
}

ExprPtr ExprParser::ParseDict() {
  ExprPtr expr = Make(ExprKind::kDict, Next().line);
  while (!AtOperator("}")) {
    if (!expr->children.empty()) ExpectOperator(",");
    if (AtOperator("}")) break;
    expr->children.push_back(ParseExpression());
    ExpectOperator(":");
    expr->children.push_back(ParseExpression());
  }
  ExpectOperator("}");
  return Finish(std::move(expr));
}

bool ExprParser::AtTupleEnd() const {
  return Current().kind == TokenKind::kBlockEnd || Current().kind == TokenKind::kVariableEnd ||
         AtOperator(")") || AtName("recursive");
}

ExprPtr ExprParser::ParseTuple(bool with_conditional) {
  const int line = Current().line;
  ExprPtr first = with_conditional ? ParseExpression() : ParseOr();
  if (!AtOperator(",")) return first;
  ExprPtr expr = Make(ExprKind::kTuple, line);
  expr->children.push_back(std::move(first));
  while (SkipOperator(",")) {
    if (AtTupleEnd()) break;
    expr->children.push_back(with_conditional ? ParseExpression() : ParseOr());
  }
  return Finish(std::move(expr));
}

ExprPtr ExprParser::ParseTargetItem(bool allow_namespace) {
  if (SkipOperator("(")) {
    const DepthGuard guard(&depth_, Current().line);
    ExprPtr inner = ParseTarget(allow_namespace);
    ExpectOperator(")");
    return inner;
  }
  const int line = Current().line;
  ExprPtr expr = Make(ExprKind::kName, line);
  expr->name = ExpectName("a name to assign to");
  static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False",
                                                   "None", "and",   "or",   "not",  "if",
                                                   "else", "in",    "is"};
  if (std::find(std::begin(kReserved), std::end(kReserved), expr->name) != std::end(kReserved)) {
    FailAt(line, "cannot assign to '" + expr->name + "'");
  }
  if (allow_namespace && SkipOperator(".")) {
    expr->kind = ExprKind::kNamespaceRef;
    expr->attribute = ExpectName("an attribute name");
  }
  return expr;
}

ExprPtr ExprParser::ParseTarget(bool allow_namespace) {
  const int line = Current().line;
  ExprPtr first = ParseTargetItem(allow_namespace);
  if (!AtOperator(",")) return first;
  ExprPtr expr = Make(ExprKind::kTuple, line);
  expr->children.push_back(std::move(first));
  while (SkipOperator(",")) {
    if (Current().kind != TokenKind::kName && !AtOperator("(")) break;
    if (AtName("in")) break;
    expr->children.push_back(ParseTargetItem(allow_namespace));
  }
  return Finish(std::move(expr));
}

ExprPtr ExprParser::ParsePostfix(ExprPtr expr) {
  while (true) {
    if (AtOperator(".") || AtOperator("[")) {
      expr = ParseSubscript(std::move(expr));
    } else if (AtOperator("(")) {
      ExprPtr call = Make(ExprKind::kCall, Current().line);
      call->children.push_back(std::move(expr));
      ParseArguments(call.get());
      expr = Finish(std::move(call));
    } else {
      return expr;
    }
  }
}

ExprPtr ExprParser::ParsePostfixAfterPrimary() { return ParsePostfix(ParsePrimary()); }

ExprPtr ExprParser::ParseFilterExpr(ExprPtr expr) {
  while (true) {
    if (AtOperator("|")) {
      expr = ParseFilterChain(std::move(expr), false);
    } else if (AtName("is")) {
      expr = ParseTest(std::move(expr));
    } else if (AtOperator("(")) {
      ExprPtr call = Make(ExprKind::kCall, Current().line);
      call->children.push_back(std::move(expr));
      ParseArguments(call.get());
      expr = Finish(std::move(call));
    } else {
      return expr;
    }
  }
}

ExprPtr ExprParser::ParseSubscript(ExprPtr expr) {
  const Token& open = Next();
  if (open.text == ".") {
    const Token& name = Next();
    ExprPtr out;
    if (name.kind == TokenKind::kName) {
      out = Make(ExprKind::kAttribute, open.line);
      out->name = name.text;
      out->children.push_back(std::move(expr));
    } else if (name.kind == TokenKind::kInteger) {
      out = Make(ExprKind::kItem, open.line);
      out->children.push_back(std::move(expr));
      out->children.push_back(Make(ExprKind::kConst, name.line));
      out->children.back()->value = name.value;
    } else {
      FailAt(name.line, "expected a name or a number after '.', found " + Describe(name));
    }
    return Finish(std::move(out));
  }
  ExprPtr out = Make(ExprKind::kItem, open.line);
  out->children.push_back(std::move(expr));
  ExprPtr index = ParseSubscribed();
  if (AtOperator(",")) {
    ExprPtr tuple = Make(ExprKind::kTuple, open.line);
    if (index->kind == ExprKind::kSlice) Unexpected("']'");
    tuple->children.push_back(std::move(index));
    while (SkipOperator(",")) tuple->children.push_back(ParseExpression());
    index = Finish(std::move(tuple));
  }
  out->children.push_back(std::move(index));
  ExpectOperator("]");
  return Finish(std::move(out));
}

ExprPtr ExprParser::ParseSubscribed() {
  const int line = Current().line;
  ExprPtr start;
  if (!AtOperator(":")) {
    start = ParseExpression();
    if (!AtOperator(":")) return start;
  }
  ExprPtr slice = Make(ExprKind::kSlice, line);
  slice->children.push_back(std::move(start));
  const auto part = [&]() -> ExprPtr {
    if (AtOperator(":") || AtOperator("]") || AtOperator(",")) return nullptr;
    return ParseExpression();
  };
  ExpectOperator(":");
  slice->children.push_back(part());
  slice->children.push_back(SkipOperator(":") ? part() : nullptr);
  return Finish(std::move(slice));
}

void ExprParser::ParseArguments(Expr* call) {
  ExpectOperator("(");
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) {
      ExpectOperator(",");
      if (AtOperator(")")) break;
    }
    first = false;
    const int line = Current().line;
    if (SkipOperator("*")) {
      if (call->star != nullptr || call->double_star != nullptr) {
        FailAt(line, "only one *argument per call, before **argument");
      }
      call->star = ParseExpression();
    } else if (SkipOperator("**")) {
      if (call->double_star != nullptr) FailAt(line, "only one **argument per call");
      call->double_star = ParseExpression();
    } else if (Current().kind == TokenKind::kName &&
               tokens_[pos_ + 1].kind == TokenKind::kOperator && tokens_[pos_ + 1].text == "=") {
      std::string name = Next().text;
      Next();
      call->keywords.emplace_back(std::move(name), ParseExpression());
    } else {
      if (!call->keywords.empty() || call->star != nullptr || call->double_star != nullptr) {
        FailAt(line, "a positional argument follows a named one");
      }
      call->arguments.push_back(ParseExpression());
    }
  }
  ExpectOperator(")");
}

ExprPtr ExprParser::ParseFilterChain(ExprPtr input, bool first_is_inline) {
  while (first_is_inline || AtOperator("|")) {
    if (!first_is_inline) Next();
    first_is_inline = false;
    const int line = Current().line;
    ExprPtr filter = Make(ExprKind::kFilter, line);
    filter->name = ExpectName("a filter name");
    if (!IsFilter(filter->name)) FailAt(line, "no filter named '" + filter->name + "'");
    filter->children.push_back(std::move(input));
    if (AtOperator("(")) ParseArguments(filter.get());
    input = Finish(std::move(filter));
  }
  return input;
}

ExprPtr ExprParser::ParseTest(ExprPtr expr) {
  const int line = Next().line;
  const bool negated = SkipName("not");
  ExprPtr test = Make(ExprKind::kTest, line);
  test->name = ExpectName("a test name");
  if (!IsTest(test->name)) FailAt(line, "no test named '" + test->name + "'");
  test->children.push_back(std::move(expr));
  const Token& token = Current();
  if (AtOperator("(")) {
    ParseArguments(test.get());
  } else if (token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
             token.kind == TokenKind::kFloat || AtOperator("[") || AtOperator("{") ||
             (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" &&
              token.text != "and")) {
    if (AtName("is")) FailAt(line, "tests cannot be chained with is");
    // `x is defined if ...` and `x is string in ...` read a keyword as an argument in no dialect.
    if (!AtName("if") && !AtName("in") && !AtName("not")) {
      test->arguments.push_back(ParsePostfixAfterPrimary());
    }
  }
  test = Finish(std::move(test));
  if (!negated) return test;
  ExprPtr inverted = Make(ExprKind::kNot, line);
  inverted->children.push_back(std::move(test));
  return Finish(std::move(inverted));
}

}  // namespace titan::text::jinja
