// Runs a parsed template: statements in execute.cc, expressions in evaluate.cc, calls in call.cc. Thread: one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/callable.h"
#include "runtime/text/jinja/runtime.h"

namespace headrace::jinja {

// The variables of a template, a loop's iteration, a macro's call or a block. Reads search outwards; writes stay here.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<std::string, Value>> variables;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Evaluator {
 public:
  Evaluator(Runtime& runtime, std::vector<std::pair<std::string, Value>> variables);
  Text run(const Block& block);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Deeper;  // counts one level while it lives

  // execute.cc
  Flow execute(const Block& block);
  Flow execute(const Stmt& statement);
  Flow execute_if(const Stmt& statement);
  void execute_loop(const Stmt& statement, const Value& over, int64_t depth);
  std::vector<Value> loop_items(const Stmt& statement, const Value& over);
  void execute_call(const Stmt& statement);
  Flow execute_scope(const Stmt& statement);
  Flow captured(const Stmt& statement, Value* out);  // bodies[0] in a scope of its own, through exprs[0]
  void print(const Value& value);
  void print(std::string_view bytes);
  void check_output();
  // What `run` prints while `scope` is the current one.
  template <typename Run>
  Value printed_in(ScopePtr scope, const Run& run) {
    Text text;
    Text* const out = std::exchange(out_, &text);
    const ScopePtr before = std::exchange(scope_, std::move(scope));
    run();
    scope_ = before;
    out_ = out;
    return runtime_.text(std::move(text));
  }
  void assign(const Target& target, const Value& value);

  // evaluate.cc
  Value evaluate(const Expr& expr);
  Value evaluate_name(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  std::vector<Value> evaluate_all(const Expr& expr, size_t begin);
  Value evaluate_or_none(const Expr& expr, size_t arg);
  Arguments arguments_of(const Expr& expr, size_t begin);

  // call.cc
  Value evaluate_call(const Expr& expr, const Value* caller);
  Value call(const Value& function, const Arguments& arguments, int line);
  Value call_macro(const Callable& callable, const Arguments& arguments);
  Value cycled(const Loop& loop, const Arguments& arguments);
  Value call_loop(const Loop& loop, const Arguments& arguments);
  void bind_parameters(const Callable& callable, const Arguments& arguments);

  Runtime& runtime_;
  ScopePtr scope_;
  Text* out_ = nullptr;
  Value captured_;
  int depth_ = 0;
};

class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator);
  ~Deeper() { --evaluator_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Evaluator& evaluator_;
};

}  // namespace headrace::jinja
