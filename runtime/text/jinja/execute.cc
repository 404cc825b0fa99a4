// Statements.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/operations.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

ScopePtr inside(const ScopePtr& outer) {
  auto scope = std::make_shared<Scope>();
  scope->outer = outer;
  return scope;
}

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->outer.get())
    for (const auto& [variable, value] : scope->variables)
      if (variable == name) return &value;
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  const auto at = std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
  if (at == variables.end()) {
    variables.emplace_back(name, std::move(value));
  } else {
    at->second = std::move(value);
  }
}

Evaluator::Evaluator(Runtime& runtime, std::vector<std::pair<std::string, Value>> variables)
    : runtime_(runtime), scope_(std::make_shared<Scope>()) {
  scope_->variables = std::move(variables);
  scope_ = inside(scope_);
}

Text Evaluator::run(const Block& block) {
  Text out;
  out_ = &out;
  execute(block);
  return out;
}

void Evaluator::check_output() {
  if (out_->size() > runtime_.limits().output_bytes)
    runtime_.fail(str("the template prints more than ", runtime_.limits().output_bytes, " bytes"));
}

void Evaluator::print(const Value& value) {
  out_->append(printed(runtime_, value));
  check_output();
}

void Evaluator::print(std::string_view bytes) {
  out_->append(bytes, Origin::kTemplate);
  check_output();
}

Evaluator::Flow Evaluator::execute(const Block& block) {
  for (const Stmt& statement : block) {
    const Flow flow = execute(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute(const Stmt& statement) {
  const Deeper deeper(*this);
  runtime_.at(statement.line);
  runtime_.charge(1);
  switch (statement.kind) {
    case StmtKind::kText:
      print(statement.text);
      return Flow::kNext;
    case StmtKind::kOutput:
      print(evaluate(*statement.exprs[0]));
      return Flow::kNext;
    case StmtKind::kIf:
      return execute_if(statement);
    case StmtKind::kFor:
      execute_loop(statement, evaluate(*statement.exprs[0]), 1);
      return Flow::kNext;
    case StmtKind::kSet:
      assign(statement.targets[0], evaluate(*statement.exprs[0]));
      return Flow::kNext;
    case StmtKind::kSetBlock: {
      Value value;
      const Flow flow = captured(statement, &value);
      if (flow == Flow::kNext) assign(statement.targets[0], value);
      return flow;
    }
    case StmtKind::kMacro: {
      Callable macro;
      macro.name = statement.text;
      macro.macro = &statement;
      macro.scope = scope_;
      scope_->set(statement.text, std::make_shared<const Callable>(std::move(macro)));
      return Flow::kNext;
    }
    case StmtKind::kCall:
      execute_call(statement);
      return Flow::kNext;
    case StmtKind::kFilterBlock: {
      Value value;
      const Flow flow = captured(statement, &value);
      if (flow == Flow::kNext) print(value);
      return flow;
    }
    case StmtKind::kScope:
      return execute_scope(statement);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute_if(const Stmt& statement) {
  for (size_t i = 0; i < statement.exprs.size(); ++i)
    if (truthy(evaluate(*statement.exprs[i]))) return execute(statement.bodies[i]);
  return statement.bodies.size() > statement.exprs.size() ? execute(statement.bodies.back()) : Flow::kNext;
}

std::vector<Value> Evaluator::loop_items(const Stmt& statement, const Value& over) {
  runtime_.at(statement.line);
  std::vector<Value> items = items_of(runtime_, over);
  if (!statement.exprs[1]) return items;
  std::vector<Value> kept;
  const ScopePtr before = scope_;
  for (Value& value : items) {
    scope_ = inside(before);
    assign(statement.targets[0], value);
    if (truthy(evaluate(*statement.exprs[1]))) kept.push_back(std::move(value));
  }
  scope_ = before;
  return kept;
}

void Evaluator::execute_loop(const Stmt& statement, const Value& over, int64_t depth) {
  Loop loop;
  loop.items = std::make_shared<const std::vector<Value>>(loop_items(statement, over));
  loop.depth = depth;
  loop.statement = statement.recursive ? &statement : nullptr;
  loop.scope = scope_;
  const ScopePtr before = scope_;
  for (; loop.index < loop.items->size(); ++loop.index) {
    runtime_.at(statement.line);
    runtime_.charge(4);
    scope_ = inside(before);
    assign(statement.targets[0], (*loop.items)[loop.index]);
    scope_->set("loop", std::make_shared<const Loop>(loop));
    if (execute(statement.bodies[0]) == Flow::kBreak) break;
  }
  if (loop.items->empty() && statement.bodies.size() > 1) {
    scope_ = inside(before);
    execute(statement.bodies[1]);
  }
  scope_ = before;
}

void Evaluator::execute_call(const Stmt& statement) {
  Callable caller;
  caller.name = "caller";
  caller.macro = &statement;
  caller.scope = scope_;
  const Value body = std::make_shared<const Callable>(std::move(caller));
  print(evaluate_call(*statement.exprs[0], &body));
}

Evaluator::Flow Evaluator::execute_scope(const Stmt& statement) {
  const ScopePtr before = scope_, scope = inside(before);
  for (size_t i = 0; i < statement.targets.size(); ++i) {  // values see the variables outside
    scope_ = before;
    const Value value = evaluate(*statement.exprs[i]);
    scope_ = scope;
    assign(statement.targets[i], value);
  }
  scope_ = scope;
  const Flow flow = execute(statement.bodies[0]);
  scope_ = before;
  return flow;
}

Evaluator::Flow Evaluator::captured(const Stmt& statement, Value* out) {
  Flow flow = Flow::kNext;
  Value text = printed_in(inside(scope_), [&] { flow = execute(statement.bodies[0]); });
  const Value outer_capture = std::exchange(captured_, std::move(text));
  *out = evaluate(*statement.exprs[0]);
  captured_ = outer_capture;
  return flow;
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const std::vector<Value> values = items_of(runtime_, value);
    if (values.size() != target.parts.size())
      runtime_.fail(str(values.size(), " values cannot be set to ", target.parts.size(), " names"));
    for (size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, value);
  const Value* found = scope_->find(target.name);
  if (!found || !found->space())
    runtime_.fail(str("'", target.name, "' is not a namespace, so it has no attribute to set"));
  if (!value.is_data()) runtime_.fail(str("a ", type_name(value), " cannot be stored in a namespace"));
  if (Value* known = found->space()->find(target.attribute)) {
    *known = value;
  } else {
    found->space()->attributes.emplace_back(target.attribute, value);
  }
}

}  // namespace headrace::jinja
