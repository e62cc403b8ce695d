// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_parser.h"

#include <string>
#include <utility>

#include "core/text/jinja_expr_parser.h"

namespace titan::text::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : in_(Tokenize(source)) {}

  Block Run() {
    Block block = ParseBlock({}, "", 0);
    return block;
  }

 private:
  using Ends = std::vector<std::string_view>;

  std::unique_ptr<Stmt> Make(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  void EndTag() { in_.Expect(TokenKind::kBlockEnd, "'%}'"); }

  // Statements up to a tag named in `ends`; the reader then stands behind that tag's name, which is
  // returned through end_. With no ends: up to the end of the template.
  Block ParseBlock(const Ends& ends, const std::string& opened, int opened_line) {
    if (++depth_ > kMaxBlockDepth) {
      FailAt(opened_line, "tags nest deeper than " + std::to_string(kMaxBlockDepth));
    }
    Block block;
    while (true) {
      const Token& token = in_.Next();
      if (token.kind == TokenKind::kEnd) {
        if (!ends.empty()) {
          FailAt(opened_line,
                 "the tag '" + opened + "' is never closed by '" + std::string(ends.back()) + "'");
        }
        break;
      }
      if (token.kind == TokenKind::kText) {
        block.push_back(Make(StmtKind::kText, token.line));
        block.back()->text = token.text;
        continue;
      }
      if (token.kind == TokenKind::kVariableBegin) {
        block.push_back(Make(StmtKind::kOutput, token.line));
        block.back()->expr = in_.ParseTuple();
        in_.Expect(TokenKind::kVariableEnd, "'}}'");
        continue;
      }
      const int line = in_.Current().line;
      const std::string name = in_.ExpectName("a tag name");
      bool at_end = false;
      for (std::string_view end : ends) at_end |= name == end;
      if (at_end) {
        end_ = name;
        break;
      }
      ParseTag(name, line, ends.empty() ? "" : opened, &block);
    }
    --depth_;
    return block;
  }

  void ParseTag(const std::string& name, int line, const std::string& inside, Block* block) {
    if (name == "if") {
      block->push_back(ParseIf(line));
    } else if (name == "for") {
      block->push_back(ParseFor(line));
    } else if (name == "set") {
      block->push_back(ParseSet(line));
    } else if (name == "macro") {
      block->push_back(ParseMacro(line));
    } else if (name == "call") {
      block->push_back(ParseCall(line));
    } else if (name == "filter") {
      auto stmt = Make(StmtKind::kFilterBlock, line);
      stmt->expr = in_.ParseFilterChain(nullptr, true);
      EndTag();
      stmt->body = ParseBlock({"endfilter"}, name, line);
      EndTag();
      block->push_back(std::move(stmt));
    } else if (name == "with") {
      block->push_back(ParseWith(line));
    } else if (name == "generation") {
      auto stmt = Make(StmtKind::kGeneration, line);
      EndTag();
      stmt->body = ParseBlock({"endgeneration"}, name, line);
      EndTag();
      block->push_back(std::move(stmt));
    } else if (name == "print") {
      auto stmt = Make(StmtKind::kOutput, line);
      stmt->expr = in_.ParseTuple();
      EndTag();
      block->push_back(std::move(stmt));
    } else if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) FailAt(line, "the tag '" + name + "' stands outside of a loop");
      EndTag();
      block->push_back(Make(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, line));
    } else {
      FailUnknown(name, line, inside);
    }
  }

  [[noreturn]] void FailUnknown(const std::string& name, int line, const std::string& inside) {
    static constexpr std::string_view kFiles[] = {"include", "import",     "from", "extends",
                                                  "block",   "autoescape", "do",   "trans"};
    for (std::string_view known : kFiles) {
      if (name == known) {
        FailAt(line, "the tag '" + name + "' is not supported in chat templates");
      }
    }
    std::string message = "unknown tag '" + name + "'";
    if (name.starts_with("end") || name == "else" || name == "elif") {
      message = "unexpected tag '" + name + "'";
      message +=
          inside.empty() ? ", nothing is open" : ", the innermost open tag is '" + inside + "'";
    }
    FailAt(line, message);
  }

  std::unique_ptr<Stmt> ParseIf(int line) {
    auto stmt = Make(StmtKind::kIf, line);
    while (true) {
      ExprPtr condition = in_.ParseTuple(false);
      EndTag();
      stmt->branches.emplace_back(std::move(condition),
                                  ParseBlock({"elif", "else", "endif"}, "if", line));
      if (end_ != "elif") break;
    }
    if (end_ == "else") {
      EndTag();
      stmt->otherwise = ParseBlock({"endif"}, "if", line);
    }
    EndTag();
    return stmt;
  }

  std::unique_ptr<Stmt> ParseFor(int line) {
    auto stmt = Make(StmtKind::kFor, line);
    stmt->target = in_.ParseTarget(false);
    if (!in_.SkipName("in")) in_.Unexpected("'in'");
    stmt->expr = in_.ParseTuple(false);
    if (in_.SkipName("if")) stmt->filter = in_.ParseExpression();
    stmt->recursive = in_.SkipName("recursive");
    EndTag();
    ++loop_depth_;
    stmt->body = ParseBlock({"else", "endfor"}, "for", line);
    --loop_depth_;
    if (end_ == "else") {
      EndTag();
      stmt->otherwise = ParseBlock({"endfor"}, "for", line);
    }
    EndTag();
    return stmt;
  }

  std::unique_ptr<Stmt> ParseSet(int line) {
    auto stmt = Make(StmtKind::kSet, line);
    stmt->target = in_.ParseTarget(true);
    if (in_.SkipOperator("=")) {
      stmt->expr = in_.ParseTuple();
      EndTag();
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expr = in_.ParseFilterChain(nullptr, false);
    EndTag();
    stmt->body = ParseBlock({"endset"}, "set", line);
    EndTag();
    return stmt;
  }

  void ParseSignature(Stmt* stmt) {
    in_.ExpectOperator("(");
    while (!in_.AtOperator(")")) {
      if (!stmt->parameters.empty()) in_.ExpectOperator(",");
      if (in_.AtOperator(")")) break;
      const int line = in_.Current().line;
      stmt->parameters.push_back(in_.ExpectName("a parameter name"));
      if (in_.SkipOperator("=")) {
        stmt->defaults.push_back(in_.ParseExpression());
      } else if (!stmt->defaults.empty()) {
        FailAt(line, "a parameter without a default follows one with a default");
      }
    }
    in_.ExpectOperator(")");
  }

  void ParseMacroBody(Stmt* stmt, std::string_view end, const std::string& tag) {
    in_.macro_stack().emplace_back();
    const int loops = std::exchange(loop_depth_, 0);
    stmt->body = ParseBlock({end}, tag, stmt->line);
    loop_depth_ = loops;
    const ExprParser::MacroUse use = in_.macro_stack().back();
    in_.macro_stack().pop_back();
    stmt->uses_caller = use.caller;
    stmt->uses_varargs = use.varargs;
    stmt->uses_kwargs = use.kwargs;
    EndTag();
  }

  std::unique_ptr<Stmt> ParseMacro(int line) {
    auto stmt = Make(StmtKind::kMacro, line);
    stmt->name = in_.ExpectName("a macro name");
    ParseSignature(stmt.get());
    EndTag();
    ParseMacroBody(stmt.get(), "endmacro", "macro");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseCall(int line) {
    auto stmt = Make(StmtKind::kCallBlock, line);
    if (in_.AtOperator("(")) ParseSignature(stmt.get());
    stmt->expr = in_.ParseExpression();
    if (stmt->expr->kind != ExprKind::kCall) FailAt(line, "the tag 'call' needs a call");
    EndTag();
    ParseMacroBody(stmt.get(), "endcall", "call");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseWith(int line) {
    auto stmt = Make(StmtKind::kWith, line);
    while (in_.Current().kind != TokenKind::kBlockEnd) {
      if (!stmt->targets.empty()) in_.ExpectOperator(",");
      auto target = std::make_unique<Expr>();
      target->kind = ExprKind::kName;
      target->line = in_.Current().line;
      target->name = in_.ExpectName("a name to assign to");
      in_.ExpectOperator("=");
      stmt->targets.push_back(std::move(target));
      stmt->values.push_back(in_.ParseExpression());
    }
    EndTag();
    stmt->body = ParseBlock({"endwith"}, "with", line);
    EndTag();
    return stmt;
  }

  ExprParser in_;
  std::string end_;
  int depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Block ParseTemplate(std::string_view source) { return Parser(source).Run(); }

}  // namespace titan::text::jinja
