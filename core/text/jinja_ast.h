// SPDX-License-Identifier: Apache-2.0
//
// The tree of a parsed chat template. Immutable after parsing and owned by its ChatTemplate; nodes
// know their line. Expression depth is bounded by the parser, so walking and freeing the tree is
// safe.
#ifndef TITAN_CORE_TEXT_JINJA_AST_H_
#define TITAN_CORE_TEXT_JINJA_AST_H_

#include <memory>
#include <string>
#include <vector>

#include "core/text/jinja_value.h"

namespace titan::text::jinja {

enum class ExprKind {
  kConst,         // value
  kName,          // name
  kNamespaceRef,  // target only: name.attribute
  kList,          // children
  kTuple,         // children
  kDict,          // children: key, value, key, value, ...
  kAttribute,     // children[0] . name
  kItem,          // children[0] [ children[1] ]
  kSlice,         // children: start, stop, step (each may be null); only below kItem
  kCall,          // children[0] ( arguments )
  kFilter,        // children[0] | name ( arguments ); children[0] null in a filter block
  kTest,          // children[0] is name ( arguments )
  kConcat,        // children, joined by ~
  kUnary,         // name: - +
  kBinary,        // name: + - * / // % **
  kCompare,       // children[0] operators[0] children[1] operators[1] ...
  kAnd,
  kOr,
  kNot,
  kConditional,  // children: condition, then, else (may be null)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;
  std::string name;
  std::string attribute;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  // kCall, kFilter, kTest
  std::vector<ExprPtr> arguments;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;         // *expression
  ExprPtr double_star;  // **expression
};

enum class StmtKind {
  kText,         // text
  kOutput,       // expr
  kIf,           // branches; otherwise
  kFor,          // target, expr (iterable), filter, body, otherwise, recursive
  kSet,          // target, expr
  kSetBlock,     // target, expr (filter chain or null), body
  kMacro,        // name, parameters, defaults, body
  kCallBlock,    // expr (kCall), parameters, defaults, body
  kFilterBlock,  // expr (filter chain), body
  kWith,         // targets, values, body
  kBreak,
  kContinue,
  kGeneration,  // body
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  std::string name;
  ExprPtr target;
  ExprPtr expr;
  ExprPtr filter;
  bool recursive = false;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> values;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  Block body;
  Block otherwise;
};

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_AST_H_
