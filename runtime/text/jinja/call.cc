// Calls of functions, methods, macros and recursive loops, and the attributes of `loop`.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operations.h"

namespace headrace::jinja {

Value Evaluator::evaluate_call(const Expr& expr, const Value* caller) {
  const Value function = evaluate(*expr.args[0]);
  Arguments arguments = arguments_of(expr, 1);
  if (caller) arguments.named.emplace_back("caller", *caller);
  return call(function, arguments, expr.line);
}

Value Evaluator::call(const Value& function, const Arguments& arguments, int line) {
  runtime_.at(line);
  if (function.is_undefined()) runtime_.fail(function.why_undefined());
  if (function.loop()) return call_loop(*function.loop(), arguments);
  const Callable* callable = function.callable();
  if (!callable) runtime_.fail(str("a ", type_name(function), " cannot be called"));
  if (callable->builtin) return callable->builtin(runtime_, arguments);
  if (const Loop* loop = callable->receiver.loop()) return cycled(*loop, arguments);
  if (!callable->macro) return call_method(runtime_, callable->receiver, callable->name, arguments);
  return call_macro(*callable, arguments);
}

// Sets the parameters in the current scope.
void Evaluator::bind_parameters(const Callable& callable, const Arguments& arguments) {
  const auto& parameters = callable.macro->parameters;
  if (arguments.positional.size() > parameters.size())
    runtime_.fail(
        str("'", callable.name, "' has ", parameters.size(), " parameters, not ", arguments.positional.size()));
  for (const auto& [name, value] : arguments.named) {
    const auto known = [&, key = std::string_view(name)](const Parameter& parameter) { return parameter.name == key; };
    const auto at = std::find_if(parameters.begin(), parameters.end(), known);
    const auto place = static_cast<size_t>(at - parameters.begin());
    if (name != "caller" && (at == parameters.end() || place < arguments.positional.size()))
      runtime_.fail(str("'", callable.name, "' has no parameter '", name, "', or has it twice"));
    scope_->set(name, value);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const auto is_it = [&](const auto& named) { return named.first == parameter.name; };
    if (i < arguments.positional.size()) {
      scope_->set(parameter.name, arguments.positional[i]);
    } else if (std::none_of(arguments.named.begin(), arguments.named.end(), is_it)) {
      scope_->set(parameter.name, parameter.preset
                                      ? evaluate(*parameter.preset)
                                      : Value::undefined(str("parameter '", parameter.name, "' was not provided")));
    }
  }
}

Value Evaluator::call_macro(const Callable& callable, const Arguments& arguments) {
  const Deeper deeper(*this);
  const ScopePtr defined_in = callable.scope.lock();
  if (!defined_in) runtime_.fail(str("the macro '", callable.name, "' is called outside the block that defines it"));
  auto scope = std::make_shared<Scope>();
  scope->outer = defined_in;
  scope->set("caller", Value::undefined("there is no 'caller'"));
  return printed_in(std::move(scope), [&] {
    bind_parameters(callable, arguments);
    execute(callable.macro->bodies[0]);
  });
}

Value Evaluator::cycled(const Loop& loop, const Arguments& arguments) {
  if (arguments.positional.empty()) runtime_.fail("cycle needs values");
  return arguments.positional[loop.index % arguments.positional.size()];
}

Value Evaluator::call_loop(const Loop& loop, const Arguments& arguments) {
  const Deeper deeper(*this);
  if (!loop.statement) runtime_.fail("'loop' can be called in a recursive loop only");
  const Value over = *bound(runtime_, arguments, "loop", {"iterable"}, 1)[0];
  const ScopePtr around = loop.scope.lock();
  if (!around) runtime_.fail("'loop' is called outside its loop");
  return printed_in(around, [&] { execute_loop(*loop.statement, over, loop.depth + 1); });
}

Value loop_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  const Loop& loop = *value.loop();
  const auto index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem")
    return index > 0 ? (*loop.items)[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? (*loop.items)[loop.index + 1] : Value::undefined("there is no next item");
  if (name == "cycle") {
    Callable cycle;
    cycle.name = "cycle";
    cycle.receiver = value;
    return std::make_shared<const Callable>(std::move(cycle));
  }
  runtime.fail(str("'loop' has no '", name, "'"));
}

}  // namespace headrace::jinja
