// Expressions.
#include "cache/base.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/operations.h"

namespace headrace::jinja {

Evaluator::Deeper::Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
  if (evaluator.depth_ >= evaluator.runtime_.limits().depth)
    evaluator.runtime_.fail(str("nests more than ", evaluator.runtime_.limits().depth, " levels"));
  ++evaluator.depth_;
}

Value Evaluator::evaluate_name(const Expr& expr) {
  const Value* found = scope_->find(expr.name);
  if (found) return *found;
  const Builtin function = function_named(expr.name);
  if (!function) return Value::undefined(str("'", expr.name, "' is undefined"));
  Callable callable;
  callable.name = expr.name;
  callable.builtin = function;
  return std::make_shared<const Callable>(std::move(callable));
}

std::vector<Value> Evaluator::evaluate_all(const Expr& expr, size_t begin) {
  std::vector<Value> out;
  for (size_t i = begin; i < expr.args.size(); ++i) out.push_back(evaluate(*expr.args[i]));
  return out;
}

Value Evaluator::evaluate_or_none(const Expr& expr, size_t arg) {
  return expr.args[arg] ? evaluate(*expr.args[arg]) : Value(None());
}

Arguments Evaluator::arguments_of(const Expr& expr, size_t begin) {
  Arguments out;
  out.positional = evaluate_all(expr, begin);
  for (const auto& [name, value] : expr.named) out.named.emplace_back(name, evaluate(*value));
  return out;
}

Value Evaluator::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.args[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.args[i + 1]);
    runtime_.at(expr.line);
    if (!compared(runtime_, expr.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::evaluate_dict(const Expr& expr) {
  Dict out;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    Value key = evaluate(*expr.args[i]), value = evaluate(*expr.args[i + 1]);
    runtime_.charge(1 + out.entries.size() / 8 + key.weight());
    out.set(std::move(key), std::move(value));
  }
  runtime_.at(expr.line);
  return runtime_.dict(std::move(out));
}

Value Evaluator::evaluate(const Expr& expr) {
  const Deeper deeper(*this);
  runtime_.at(expr.line);
  runtime_.charge(1);
  const auto arg = [&](size_t i) { return evaluate(*expr.args[i]); };
  const auto here = [&] { runtime_.at(expr.line); };
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return evaluate_name(expr);
    case ExprKind::kCaptured:
      return captured_;
    case ExprKind::kList:
      return runtime_.list(evaluate_all(expr, 0));
    case ExprKind::kTuple:
      return runtime_.tuple(evaluate_all(expr, 0));
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kAttribute: {
      const Value value = arg(0);
      here();
      return attribute(runtime_, value, expr.name);
    }
    case ExprKind::kItem: {
      const Value value = arg(0), key = arg(1);
      here();
      return item(runtime_, value, key);
    }
    case ExprKind::kSlice: {
      const Value value = arg(0), start = evaluate_or_none(expr, 1), stop = evaluate_or_none(expr, 2),
                  step = evaluate_or_none(expr, 3);
      here();
      return sliced(runtime_, value, start, stop, step);
    }
    case ExprKind::kCall:
      return evaluate_call(expr, nullptr);
    case ExprKind::kFilter: {
      const Arguments arguments = arguments_of(expr, 0);
      here();
      return apply_filter(runtime_, expr.name, arguments);
    }
    case ExprKind::kTest: {
      const Arguments arguments = arguments_of(expr, 0);
      here();
      return apply_test(runtime_, expr.name, arguments);
    }
    case ExprKind::kNot:
      return !truthy(arg(0));
    case ExprKind::kUnary: {
      const Value value = arg(0);
      here();
      return unary(runtime_, expr.name, value);
    }
    case ExprKind::kBinary: {
      const Value a = arg(0), b = arg(1);
      here();
      return binary(runtime_, expr.name, a, b);
    }
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kAnd: {
      Value left = arg(0);
      return truthy(left) ? arg(1) : left;
    }
    case ExprKind::kOr: {
      Value left = arg(0);
      return truthy(left) ? left : arg(1);
    }
    case ExprKind::kConditional:
      if (truthy(arg(1))) return arg(0);
      return expr.args[2] ? arg(2) : Value::undefined("an 'if' without 'else' has no value");
  }
  CHECK(false);
  return {};
}

}  // namespace headrace::jinja
