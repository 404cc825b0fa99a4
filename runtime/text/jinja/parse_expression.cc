// Expressions, from the loosest operator to the tightest: if, or, and, not, comparisons, + -, ~, * / // %, **, signs,
// and last subscripts, calls, filters and tests.
#include <algorithm>
#include <array>
#include <utility>

#include "cache/base.h"
#include "runtime/text/jinja/parser.h"

namespace headrace::jinja {

namespace {

constexpr std::array<std::string_view, 6> kComparisonOperators = {"==", "!=", "<", "<=", ">", ">="};
// Binary operators of one level each, the loosest first.
constexpr std::array<std::array<std::string_view, 4>, 4> kLevels = {{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}};

}  // namespace

ExprPtr Parser::parse_expression() {
  if (++nesting_ > kMaxNesting) fail(str("expected at most ", kMaxNesting, " brackets and blocks within each other"));
  ExprPtr expr = parse_or();
  while (skip_word("if")) {
    ExprPtr condition = parse_or();
    ExprPtr otherwise = skip_word("else") ? parse_expression() : nullptr;
    expr = pair(ExprKind::kConditional, "", std::move(expr), std::move(condition));
    add(expr.get(), std::move(otherwise));
  }
  --nesting_;
  return expr;
}

ExprPtr Parser::parse_tuple(bool with_condition) {
  const int line = current().line;
  const auto one = [&] { return with_condition ? parse_expression() : parse_or(); };
  ExprPtr first = one();
  if (!is_operator(",")) return first;
  ExprPtr tuple = make(ExprKind::kTuple, line);
  add(tuple.get(), std::move(first));
  while (skip_operator(",")) {
    const TokenKind kind = current().kind;
    const bool ends = kind == TokenKind::kBlockEnd || kind == TokenKind::kVariableEnd || is_operator(")") ||
                      is_operator("]") || is_operator("=");
    if (ends) break;
    add(tuple.get(), one());
  }
  return tuple;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_word("or")) left = pair(ExprKind::kOr, "", std::move(left), parse_and());
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_word("and")) left = pair(ExprKind::kAnd, "", std::move(left), parse_not());
  return left;
}

ExprPtr Parser::parse_not() {
  if (!is_word("not")) return parse_compare();
  ExprPtr expr = make(ExprKind::kNot, take().line);
  if (++nesting_ > kMaxNesting) fail(str("expected at most ", kMaxNesting, " 'not' in a row"));
  add(expr.get(), parse_not());
  --nesting_;
  return expr;
}

ExprPtr Parser::parse_compare() {
  ExprPtr left = parse_operators(0);
  ExprPtr compare;
  for (;;) {
    std::string name;
    if (is_word("in")) {
      name = "in";
    } else if (is_word("not") && is_word("in", 1)) {
      take();
      name = "not in";
    } else if (current().kind == TokenKind::kOperator &&
               std::find(kComparisonOperators.begin(), kComparisonOperators.end(), current().text) !=
                   kComparisonOperators.end()) {
      name = current().text;
    } else {
      return compare ? std::move(compare) : std::move(left);
    }
    take();
    if (!compare) {
      compare = make(ExprKind::kCompare, left->line);
      add(compare.get(), std::exchange(left, nullptr));
    }
    compare->operators.push_back(name);
    add(compare.get(), parse_operators(0));
  }
}

ExprPtr Parser::parse_operators(int level) {
  if (level == static_cast<int>(kLevels.size())) return parse_unary(true);
  const auto& names = kLevels[static_cast<size_t>(level)];
  ExprPtr left = parse_operators(level + 1);
  while (current().kind == TokenKind::kOperator &&
         std::find(names.begin(), names.end(), current().text) != names.end()) {
    const std::string name = take().text;
    left = pair(ExprKind::kBinary, name, std::move(left), parse_operators(level + 1));
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filters) {
  ExprPtr expr;
  if (is_operator("-") || is_operator("+")) {
    if (++nesting_ > kMaxNesting) fail(str("expected at most ", kMaxNesting, " signs in a row"));
    const Token& sign = take();
    expr = make(ExprKind::kUnary, sign.line, sign.text);
    add(expr.get(), parse_unary(false));
    --nesting_;
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_primary() {
  if (is_operator("(")) return parse_parentheses();
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  return parse_constant_or_name();
}

ExprPtr Parser::parse_constant_or_name() {
  const Token& token = current();
  ExprPtr expr = make(ExprKind::kConstant, token.line);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += take().text;  // "a" "b" is "ab"
    expr->constant = Text(std::move(text));
    return expr;
  }
  if (token.kind == TokenKind::kNumber) {
    expr->constant = take().number;
    return expr;
  }
  if (token.kind != TokenKind::kName) fail("expected an expression");
  const std::string name = take().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->constant = name[0] == 't' || name[0] == 'T';
  } else if (name == "none" || name == "None") {
    expr->constant = None();
  } else {
    expr->kind = ExprKind::kName;
    expr->name = name;
  }
  return expr;
}

ExprPtr Parser::parse_parentheses() {
  const int line = take().line;
  if (skip_operator(")")) return make(ExprKind::kTuple, line);
  ExprPtr expr = parse_tuple();
  expect_operator(")");
  return expr;
}

ExprPtr Parser::parse_list() {
  ExprPtr list = make(ExprKind::kList, take().line);
  while (!skip_operator("]")) {
    add(list.get(), parse_expression());
    if (!is_operator("]")) expect_operator(",");
  }
  return list;
}

ExprPtr Parser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, take().line);
  while (!skip_operator("}")) {
    add(dict.get(), parse_expression());
    expect_operator(":");
    add(dict.get(), parse_expression());
    if (!is_operator("}")) expect_operator(",");
  }
  return dict;
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  for (;;) {
    if (is_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (is_operator("(")) {
      expr = parse_call_of(std::move(expr));
    } else if (skip_operator(".")) {
      const Token& token = take();
      if (token.kind == TokenKind::kNumber && token.number.integer()) {
        ExprPtr index = make(ExprKind::kConstant, token.line);
        index->constant = token.number;
        expr = pair(ExprKind::kItem, "", std::move(expr), std::move(index));
      } else if (token.kind == TokenKind::kName) {
        ExprPtr attribute = make(ExprKind::kAttribute, token.line, token.text);
        add(attribute.get(), std::move(expr));
        expr = std::move(attribute);
      } else {
        fail("expected a name after '.'");
      }
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr expr) {
  const int line = take().line;
  std::vector<ExprPtr> parts(1);
  if (!is_operator(":")) parts[0] = parse_tuple();
  while (parts.size() < 3 && skip_operator(":")) {
    parts.emplace_back();
    if (!is_operator(":") && !is_operator("]")) parts.back() = parse_expression();
  }
  expect_operator("]");
  const bool is_slice = parts.size() > 1;
  ExprPtr item = make(is_slice ? ExprKind::kSlice : ExprKind::kItem, line);
  parts.resize(is_slice ? 3 : 1);
  add(item.get(), std::move(expr));
  for (ExprPtr& part : parts) add(item.get(), std::move(part));
  return item;
}

ExprPtr Parser::parse_filters(ExprPtr expr) {
  for (;;) {
    if (skip_operator("|")) {
      expr = parse_filter(std::move(expr));
    } else if (is_word("is")) {
      take();
      expr = parse_test(std::move(expr));
    } else if (is_operator("(")) {
      expr = parse_call_of(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_call_of(ExprPtr expr) {
  ExprPtr call = make(ExprKind::kCall, expr->line);
  add(call.get(), std::move(expr));
  parse_arguments(call.get());
  return call;
}

std::string Parser::parse_dotted_name() {
  std::string name = take_name();
  while (skip_operator(".")) name += "." + take_name();
  return name;
}

ExprPtr Parser::parse_filter(ExprPtr expr) {
  const int line = current().line;
  ExprPtr filter = make(ExprKind::kFilter, line, parse_dotted_name());
  add(filter.get(), std::move(expr));
  if (is_operator("(")) parse_arguments(filter.get());
  return filter;
}

ExprPtr Parser::parse_test(ExprPtr expr) {
  const int line = current().line;
  const bool negated = skip_word("not");
  ExprPtr test = make(ExprKind::kTest, line, parse_dotted_name());
  add(test.get(), std::move(expr));
  static constexpr std::array<std::string_view, 7> kWords = {"else", "or", "and", "is", "if", "in", "not"};
  const Token& next = current();
  const bool is_argument =
      next.kind == TokenKind::kString || next.kind == TokenKind::kNumber || is_operator("[") || is_operator("{") ||
      (next.kind == TokenKind::kName && std::find(kWords.begin(), kWords.end(), next.text) == kWords.end());
  if (is_operator("(")) {
    parse_arguments(test.get());
  } else if (is_argument) {
    add(test.get(), parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  ExprPtr inverse = make(ExprKind::kNot, line);
  add(inverse.get(), std::move(test));
  return inverse;
}

void Parser::parse_arguments(Expr* call) {
  expect_operator("(");
  while (!skip_operator(")")) {
    if (is_operator("*") || is_operator("**")) fail("expected an argument: '*' and '**' are not supported");
    if (current().kind == TokenKind::kName && is_operator("=", 1)) {
      std::string name = take_name();
      take();
      ExprPtr value = parse_expression();
      call->height = std::max(call->height, value->height + 1);
      call->named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call->named.empty()) fail("expected a named argument after a named one");
      add(call, parse_expression());
    }
    if (!is_operator(")")) expect_operator(",");
  }
}

}  // namespace headrace::jinja
