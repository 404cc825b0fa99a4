#include "runtime/text/jinja/parser.h"

#include <algorithm>

#include "cache/base.h"

namespace headrace::jinja {

namespace {

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return str("'", token.text, "'");
  }
}

}  // namespace

Block Parser::parse() {
  Block block = parse_block({});
  return block;
}

void Parser::fail(const std::string& what) const {
  throw_error(ExitCode::kBadInput, str(name_, ":", current().line), str(what, ", not ", described(current())),
              "the chat template cannot be read");
}

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (token.kind != TokenKind::kEnd) ++at_;
  return token;
}

bool Parser::is_operator(std::string_view text, size_t ahead) const {
  if (at_ + ahead >= tokens_.size()) return false;
  const Token& token = tokens_[at_ + ahead];
  return token.kind == TokenKind::kOperator && token.text == text;
}

bool Parser::is_word(std::string_view text, size_t ahead) const {
  if (at_ + ahead >= tokens_.size()) return false;
  const Token& token = tokens_[at_ + ahead];
  return token.kind == TokenKind::kName && token.text == text;
}

bool Parser::skip_operator(std::string_view text) {
  const bool found = is_operator(text);
  if (found) take();
  return found;
}

bool Parser::skip_word(std::string_view text) {
  const bool found = is_word(text);
  if (found) take();
  return found;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail(str("expected '", text, "'"));
}

void Parser::expect_word(std::string_view text) {
  if (!skip_word(text)) fail(str("expected '", text, "'"));
}

void Parser::expect(TokenKind kind, const char* what) {
  if (current().kind != kind) fail(str("expected ", what));
  take();
}

std::string Parser::take_name() {
  if (current().kind != TokenKind::kName) fail("expected a name");
  return take().text;
}

ExprPtr Parser::make(ExprKind kind, int line, std::string name) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->name = std::move(name);
  return expr;
}

void Parser::add(Expr* parent, ExprPtr child) const {
  if (child) parent->height = std::max(parent->height, child->height + 1);
  parent->args.push_back(std::move(child));
  if (parent->height > kMaxExprHeight) fail(str("expected at most ", kMaxExprHeight, " operators on each other"));
}

ExprPtr Parser::pair(ExprKind kind, std::string name, ExprPtr left, ExprPtr right) const {
  ExprPtr expr = make(kind, left->line, std::move(name));
  add(expr.get(), std::move(left));
  add(expr.get(), std::move(right));
  return expr;
}

}  // namespace headrace::jinja
