// SPDX-License-Identifier: Apache-2.0
#include "core/text/jinja_eval.h"

#include <algorithm>
#include <memory>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_lexer.h"
#include "core/text/jinja_ops.h"
#include "core/text/jinja_unicode.h"

namespace titan::text::jinja {

// Names of one block that has names of its own. Only inner scopes and macros hold on to outer ones.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> names;

  void Set(const std::string& name, Value value) {
    for (auto& item : names) {
      if (item.first == name) {
        item.second = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }
};

struct Macro {
  const Stmt* stmt;
  std::shared_ptr<Scope> closure;
};

struct Loop {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Scope> outer;
  Items items;
  size_t index0 = 0;
  int depth0 = 0;
  bool has_changed_value = false;
  std::vector<Value> changed_value;
};

bool FindLoopAttribute(const Value& v, const std::string& name, Value* out) {
  const Loop& loop = v.AsLoop();
  const auto index0 = static_cast<Int>(loop.index0);
  const auto length = static_cast<Int>(loop.items->size());
  if (name == "index") {
    *out = Value::Integer(index0 + 1);
  } else if (name == "index0") {
    *out = Value::Integer(index0);
  } else if (name == "revindex") {
    *out = Value::Integer(length - index0);
  } else if (name == "revindex0") {
    *out = Value::Integer(length - index0 - 1);
  } else if (name == "first") {
    *out = Value::Bool(index0 == 0);
  } else if (name == "last") {
    *out = Value::Bool(index0 + 1 == length);
  } else if (name == "length") {
    *out = Value::Integer(length);
  } else if (name == "depth") {
    *out = Value::Integer(loop.depth0 + 1);
  } else if (name == "depth0") {
    *out = Value::Integer(loop.depth0);
  } else if (name == "previtem") {
    *out =
        index0 > 0 ? (*loop.items)[loop.index0 - 1] : Value::Undefined("there is no previous item");
  } else if (name == "nextitem") {
    *out = index0 + 1 < length ? (*loop.items)[loop.index0 + 1]
                               : Value::Undefined("there is no next item");
  } else if (name == "cycle" || name == "changed") {
    *out = Value::MakeMethod(v, name);
  } else {
    return false;
  }
  return true;
}

namespace {

enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(std::optional<std::chrono::sys_seconds> now, const RenderLimits& limits)
      : limits_(limits) {
    runtime_.now = now;
  }

  ~Interpreter() {
    // Macros and namespaces may refer to each other through scopes; cut every link first.
    for (auto& macro : macros_) macro->closure.reset();
    for (auto& ns : runtime_.namespaces) ns->attributes.clear();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Rendered Run(const Block& root, std::vector<std::pair<std::string, Value>> variables) {
    Rendered rendered;
    const WorkBudget budget(limits_.max_steps);
    try {
      auto globals = std::make_shared<Scope>();
      globals->names = std::move(variables);
      auto scope = std::make_shared<Scope>();
      scope->parent = globals;
      scope_ = scope;
      Exec(root, &root_text_);
      scope_ = nullptr;
    } catch (const Raise& raise) {
      throw Raise{raise.code, "line " + std::to_string(line_) + ": " + raise.message};
    }
    rendered.text = std::move(root_text_);
    rendered.generation_spans = std::move(spans_);
    return rendered;
  }

 private:
  class Nested {
   public:
    explicit Nested(Interpreter* self) : self_(self) {
      if (++self_->depth_ > self_->limits_.max_depth) {
        --self_->depth_;
        FailLimit("expressions, blocks and macro calls nest deeper than " +
                  std::to_string(self_->limits_.max_depth));
      }
    }
    ~Nested() { --self_->depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Interpreter* self_;
  };

  // Makes `scope` the current one until it ends.
  class Within {
   public:
    Within(Interpreter* self, std::shared_ptr<Scope> scope)
        : self_(self), saved_(std::exchange(self->scope_, std::move(scope))) {}
    ~Within() { self_->scope_ = std::move(saved_); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    Interpreter* self_;
    std::shared_ptr<Scope> saved_;
  };

  static std::shared_ptr<Scope> Inner(std::shared_ptr<Scope> parent) {
    auto scope = std::make_shared<Scope>();
    scope->parent = std::move(parent);
    return scope;
  }

  void Write(std::string_view text, std::string* out) {
    Charge(1 + text.size() / 16);
    if (text.size() > limits_.max_output_bytes - std::min(limits_.max_output_bytes, out->size())) {
      FailLimit("the output is longer than " + std::to_string(limits_.max_output_bytes) + " bytes");
    }
    out->append(text);
  }

  // ---- statements

  Flow Exec(const Block& block, std::string* out) {
    const Nested nested(this);
    for (const auto& stmt : block) {
      Charge(1);
      line_ = stmt->line;
      const Flow flow = Exec(*stmt, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow Exec(const Stmt& stmt, std::string* out) {
    switch (stmt.kind) {
      case StmtKind::kText:
        Write(stmt.text, out);
        return Flow::kNext;
      case StmtKind::kOutput: {
        const Value v = Eval(*stmt.expr);
        if (v.IsString()) {
          Write(v.Str(), out);
        } else {
          Write(ToText(v), out);
        }
        return Flow::kNext;
      }
      case StmtKind::kIf:
        for (const auto& [condition, body] : stmt.branches) {
          if (Truthy(Eval(*condition))) return Exec(body, out);
        }
        return Exec(stmt.otherwise, out);
      case StmtKind::kFor:
        ExecFor(stmt, Eval(*stmt.expr), 0, scope_, out);
        return Flow::kNext;
      case StmtKind::kSet:
        Assign(*stmt.target, Eval(*stmt.expr));
        return Flow::kNext;
      case StmtKind::kSetBlock: {
        Value v = Value::String(Capture(stmt.body, Inner(scope_)));
        if (stmt.expr != nullptr) v = EvalChain(*stmt.expr, v);
        line_ = stmt.line;
        Assign(*stmt.target, v);
        return Flow::kNext;
      }
      case StmtKind::kMacro:
        scope_->Set(stmt.name, MakeMacro(stmt));
        return Flow::kNext;
      case StmtKind::kCallBlock: {
        Args args = EvalArgs(*stmt.expr);
        args.named.emplace_back("caller", MakeMacro(stmt));
        const Value callee = Eval(*stmt.expr->children[0]);
        line_ = stmt.line;
        Write(ToText(CallValue(callee, args)), out);
        return Flow::kNext;
      }
      case StmtKind::kFilterBlock: {
        const Value v = Value::String(Capture(stmt.body, Inner(scope_)));
        Write(ToText(EvalChain(*stmt.expr, v)), out);
        return Flow::kNext;
      }
      case StmtKind::kWith: {
        auto scope = Inner(scope_);
        for (size_t i = 0; i < stmt.targets.size(); ++i) {
          scope->Set(stmt.targets[i]->name, Eval(*stmt.values[i]));
        }
        const Within within(this, scope);
        return Exec(stmt.body, out);
      }
      case StmtKind::kBreak:
        return Flow::kBreak;
      case StmtKind::kContinue:
        return Flow::kContinue;
      case StmtKind::kGeneration: {
        const std::string text = Capture(stmt.body, Inner(scope_));
        const int64_t start = CountNewCodePoints();
        spans_.emplace_back(start, start + CountCodePoints(text));
        Write(text, out);
        return Flow::kNext;
      }
    }
    return Flow::kNext;
  }

  // Code points of the output so far; each byte is counted once over the whole render.
  int64_t CountNewCodePoints() {
    counted_points_ += CountCodePoints(std::string_view(root_text_).substr(counted_bytes_));
    counted_bytes_ = root_text_.size();
    return counted_points_;
  }

  std::string Capture(const Block& body, std::shared_ptr<Scope> scope) {
    const Within within(this, std::move(scope));
    std::string text;
    Exec(body, &text);
    return text;
  }

  Value MakeMacro(const Stmt& stmt) {
    Charge(8);
    macros_.push_back(std::make_unique<Macro>(Macro{&stmt, scope_}));
    return Value::MakeMacro(macros_.back().get());
  }

  void ExecFor(const Stmt& stmt, const Value& iterable, int depth0, std::shared_ptr<Scope> outer,
               std::string* out) {
    const Nested nested(this);
    auto loop = std::make_shared<Loop>();
    loop->stmt = &stmt;
    loop->outer = outer;
    loop->items = Iterate(iterable);
    loop->depth0 = depth0;
    if (stmt.filter != nullptr) {
      auto kept = std::make_shared<std::vector<Value>>();
      for (const Value& item : *loop->items) {
        const Within within(this, Inner(outer));
        Assign(*stmt.target, item);
        if (Truthy(Eval(*stmt.filter))) kept->push_back(item);
      }
      loop->items = Items(std::move(kept));
    }
    if (loop->items->empty()) {
      const Within within(this, Inner(outer));
      Exec(stmt.otherwise, out);
      return;
    }
    const Value loop_value = Value::MakeLoop(loop);
    for (; loop->index0 < loop->items->size(); ++loop->index0) {
      Charge(4);
      const Within within(this, Inner(outer));
      line_ = stmt.line;
      scope_->Set("loop", loop_value);
      Assign(*stmt.target, (*loop->items)[loop->index0]);
      if (Exec(stmt.body, out) == Flow::kBreak) break;
    }
  }

  void Assign(const Expr& target, const Value& value) {
    switch (target.kind) {
      case ExprKind::kName:
        scope_->Set(target.name, value);
        return;
      case ExprKind::kNamespaceRef: {
        const Value ns = Lookup(target.name);
        if (!ns.Is(Kind::kNamespace)) Fail("cannot assign attribute on non-namespace object");
        if (target.attribute.starts_with("_")) {
          Fail("a namespace cannot hold '" + target.attribute + "': it starts with _");
        }
        CheckStorable(value);
        auto& attributes = ns.AsNamespace().attributes;
        for (auto& [name, held] : attributes) {
          if (name == target.attribute) {
            held = value;
            return;
          }
        }
        attributes.emplace_back(target.attribute, value);
        return;
      }
      default: {
        const Items items = Iterate(value);
        if (items->size() != target.children.size()) {
          Fail("cannot unpack " + std::to_string(items->size()) + " value(s) into " +
               std::to_string(target.children.size()) + " name(s)");
        }
        for (size_t i = 0; i < items->size(); ++i) Assign(*target.children[i], (*items)[i]);
      }
    }
  }

  // ---- expressions

  Value Lookup(const std::string& name) const {
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
      for (const auto& item : scope->names) {
        if (item.first == name) return item.second;
      }
    }
    if (IsGlobalFunction(name)) return Value::MakeFunction(name);
    return Value::Undefined("'" + name + "' is undefined");
  }

  Value Eval(const Expr& expr) {
    const Nested nested(this);
    Charge(1);
    const int outer_line = std::exchange(line_, expr.line);
    Value v = EvalHere(expr);
    line_ = outer_line;
    return v;
  }

  // An operand; the line goes back to the operator's, whose failure comes next.
  Value Child(const Expr& expr, size_t i) {
    return expr.children[i] == nullptr ? Value::None() : Eval(*expr.children[i]);
  }

  std::vector<Value> EvalAll(const std::vector<ExprPtr>& exprs) {
    std::vector<Value> values;
    values.reserve(exprs.size());
    for (const auto& expr : exprs) values.push_back(Eval(*expr));
    return values;
  }

  Value EvalHere(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::kConst:
        return expr.value;
      case ExprKind::kName:
        return Lookup(expr.name);
      case ExprKind::kList:
        return Value::MakeList(EvalAll(expr.children));
      case ExprKind::kTuple:
        return Value::MakeList(EvalAll(expr.children), ListType::kTuple);
      case ExprKind::kDict: {
        std::vector<std::pair<Value, Value>> items;
        for (size_t i = 0; i < expr.children.size(); i += 2) {
          Value key = Child(expr, i);
          DictSet(&items, std::move(key), Child(expr, i + 1));
        }
        return Value::MakeDict(std::move(items));
      }
      case ExprKind::kAttribute:
        return GetAttribute(Child(expr, 0), expr.name);
      case ExprKind::kItem: {
        const Value v = Child(expr, 0);
        const Expr& index = *expr.children[1];
        if (index.kind != ExprKind::kSlice) return GetItem(v, Eval(index));
        const Value start = Child(index, 0);
        const Value stop = Child(index, 1);
        return GetSlice(v, start, stop, Child(index, 2));
      }
      case ExprKind::kCall: {
        const Value callee = Child(expr, 0);
        return CallValue(callee, EvalArgs(expr));
      }
      case ExprKind::kFilter: {
        const Value input = Child(expr, 0);
        return CallFilter(runtime_, expr.name, input, EvalArgs(expr));
      }
      case ExprKind::kTest: {
        const Value v = Child(expr, 0);
        return Value::Bool(CallTest(expr.name, v, EvalArgs(expr)));
      }
      case ExprKind::kConcat: {
        std::string text;
        for (const auto& child : expr.children) {
          text += ToText(Eval(*child));
          CheckTextSize(text.size());
        }
        return Value::String(std::move(text));
      }
      case ExprKind::kUnary:
        return UnaryOp(expr.name, Child(expr, 0));
      case ExprKind::kBinary: {
        const Value left = Child(expr, 0);
        return BinaryOp(expr.name, left, Child(expr, 1));
      }
      case ExprKind::kCompare:
        return EvalCompare(expr);
      case ExprKind::kAnd: {
        Value left = Child(expr, 0);
        return Truthy(left) ? Child(expr, 1) : left;
      }
      case ExprKind::kOr: {
        Value left = Child(expr, 0);
        return Truthy(left) ? left : Child(expr, 1);
      }
      case ExprKind::kNot:
        return Value::Bool(!Truthy(Child(expr, 0)));
      case ExprKind::kConditional:
        if (Truthy(Child(expr, 0))) return Child(expr, 1);
        if (expr.children[2] == nullptr) {
          return Value::Undefined(
              "the inline if-expression evaluated to false and no else section "
              "was defined.");
        }
        return Child(expr, 2);
      case ExprKind::kSlice:
      case ExprKind::kNamespaceRef:
        break;
    }
    Fail("an expression stands where it has no meaning");
  }

  // A filter chain whose innermost input is given.
  Value EvalChain(const Expr& filter, const Value& input) {
    const Nested nested(this);
    const Value inner =
        filter.children[0] == nullptr ? input : EvalChain(*filter.children[0], input);
    line_ = filter.line;
    return CallFilter(runtime_, filter.name, inner, EvalArgs(filter));
  }

  Value EvalCompare(const Expr& expr) {
    Value left = Child(expr, 0);
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      Value right = Child(expr, i + 1);
      if (!CompareBy(expr.operators[i], left, right)) return Value::Bool(false);
      left = std::move(right);
    }
    return Value::Bool(true);
  }

  static bool CompareBy(const std::string& op, const Value& left, const Value& right) {
    if (op == "==") return Equal(left, right);
    if (op == "!=") return !Equal(left, right);
    if (op == "in") return Contains(right, left);
    if (op == "not in") return !Contains(right, left);
    const int order = Compare(left, right, op.c_str());  // 2: not ordered (nan)
    if (op == "<") return order == -1;
    if (op == "<=") return order == -1 || order == 0;
    if (op == ">") return order == 1;
    return order == 1 || order == 0;
  }

  Args EvalArgs(const Expr& expr) {
    Args args;
    args.positional = EvalAll(expr.arguments);
    if (expr.star != nullptr) {
      const Items items = Iterate(Eval(*expr.star));
      args.positional.insert(args.positional.end(), items->begin(), items->end());
    }
    const auto add = [&args](const std::string& name, Value value) {
      for (const auto& item : args.named) {
        if (item.first == name) Fail("got multiple values for the argument '" + name + "'");
      }
      args.named.emplace_back(name, std::move(value));
    };
    for (const auto& [name, value] : expr.keywords) add(name, Eval(*value));
    if (expr.double_star != nullptr) {
      const Value dict = Eval(*expr.double_star);
      if (!dict.Is(Kind::kDict)) Fail("the argument after ** must be a mapping");
      for (const auto& [key, value] : dict.AsDict().items) {
        add(RequireString(key, "a name in **"), value);
      }
    }
    return args;
  }

  Value CallValue(const Value& callee, const Args& args) {
    switch (callee.kind()) {
      case Kind::kMacro:
        return CallMacro(callee.AsMacro(), args);
      case Kind::kLoop:
        return CallLoop(callee.AsLoop(), args);
      case Kind::kFunction: {
        const Function& function = callee.AsFunction();
        if (!function.bound) return CallGlobal(runtime_, function.name, args);
        if (function.self.Is(Kind::kLoop)) {
          return CallLoopMethod(function.self.AsLoop(), function.name, args);
        }
        return CallMethod(function.self, function.name, args);
      }
      case Kind::kUndefined:
        Fail(callee.UndefinedMessage());
      default:
        Fail(std::string("'") + TypeName(callee) + "' object is not callable");
    }
  }

  Value CallLoop(Loop& loop, const Args& args) {
    const Bound bound("loop", args, {"iterable"}, 1);
    if (!loop.stmt->recursive) {
      Fail("The loop must have the 'recursive' marker to be called recursively.");
    }
    std::string text;
    ExecFor(*loop.stmt, bound[0], loop.depth0 + 1, loop.outer, &text);
    return Value::String(std::move(text));
  }

  static Value CallLoopMethod(Loop& loop, const std::string& name, const Args& args) {
    if (!args.named.empty()) Fail("loop." + name + " takes no named argument");
    if (name == "cycle") {
      if (args.positional.empty()) Fail("no items for cycling given");
      return args.positional[loop.index0 % args.positional.size()];
    }
    const bool same =
        loop.has_changed_value && std::equal(loop.changed_value.begin(), loop.changed_value.end(),
                                             args.positional.begin(), args.positional.end(), Equal);
    for (const Value& v : args.positional) CheckStorable(v);
    loop.has_changed_value = true;
    loop.changed_value = args.positional;
    return Value::Bool(!same);
  }

  Value CallMacro(const Macro& macro, const Args& args) {
    const Nested nested(this);
    const Stmt& stmt = *macro.stmt;
    const std::string what = stmt.name.empty() ? "caller" : "macro '" + stmt.name + "'";
    auto scope = Inner(macro.closure);
    const size_t count = stmt.parameters.size();
    std::vector<std::pair<std::string, Value>> rest = args.named;
    const auto take = [&rest](const std::string& name, Value* out) {
      for (size_t i = 0; i < rest.size(); ++i) {
        if (rest[i].first != name) continue;
        *out = rest[i].second;
        rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
        return true;
      }
      return false;
    };
    std::vector<bool> given(count, false);
    for (size_t i = 0; i < count; ++i) {
      Value v;
      if (i < args.positional.size()) {
        v = args.positional[i];
      } else if (!take(stmt.parameters[i], &v)) {
        continue;
      }
      given[i] = true;
      scope->Set(stmt.parameters[i], std::move(v));
    }
    const bool declares_caller = std::find(stmt.parameters.begin(), stmt.parameters.end(),
                                           "caller") != stmt.parameters.end();
    if (stmt.uses_caller && !declares_caller) {
      Value caller = Value::Undefined("No caller defined");
      take("caller", &caller);
      scope->Set("caller", std::move(caller));
    }
    if (stmt.uses_kwargs) {
      std::vector<std::pair<Value, Value>> items;
      for (auto& [name, value] : rest) DictSet(&items, Value::String(name), std::move(value));
      scope->Set("kwargs", Value::MakeDict(std::move(items)));
    } else if (!rest.empty()) {
      Fail(what + " takes no keyword argument '" + rest.front().first + "'");
    }
    if (stmt.uses_varargs) {
      std::vector<Value> surplus;
      for (size_t i = count; i < args.positional.size(); ++i) surplus.push_back(args.positional[i]);
      scope->Set("varargs", Value::MakeList(std::move(surplus), ListType::kTuple));
    } else if (args.positional.size() > count) {
      Fail(what + " takes not more than " + std::to_string(count) + " argument(s)");
    }
    const Within within(this, scope);
    const size_t first_default = count - stmt.defaults.size();
    for (size_t i = 0; i < count; ++i) {
      if (given[i]) continue;
      scope->Set(stmt.parameters[i],
                 i >= first_default
                     ? Eval(*stmt.defaults[i - first_default])
                     : Value::Undefined("parameter '" + stmt.parameters[i] + "' was not provided"));
    }
    const int line = line_;
    std::string text;
    Exec(stmt.body, &text);
    line_ = line;
    return Value::String(std::move(text));
  }

  const RenderLimits limits_;
  Runtime runtime_;
  std::vector<std::unique_ptr<Macro>> macros_;
  std::shared_ptr<Scope> scope_;
  std::string root_text_;
  std::vector<std::pair<int64_t, int64_t>> spans_;
  int64_t counted_points_ = 0;
  size_t counted_bytes_ = 0;
  int line_ = 1;
  int depth_ = 0;
};

}  // namespace

Rendered RenderBlock(const Block& root, std::vector<std::pair<std::string, Value>> variables,
                     std::optional<std::chrono::sys_seconds> now, const RenderLimits& limits) {
  return Interpreter(now, limits).Run(root, std::move(variables));
}

}  // namespace titan::text::jinja
