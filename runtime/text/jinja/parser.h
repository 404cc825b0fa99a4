// Tokens to trees: expressions in parse_expression.cc, statements in parse_statement.cc. A pure function.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/lexer.h"

namespace headrace::jinja {

constexpr int kMaxNesting = 100;     // of statements and brackets within each other
constexpr int kMaxExprHeight = 400;  // "a + b + c" is three high

class Parser {
 public:
  // Borrows the name, for errors.
  Parser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}
  // Throws Error(kBadInput) at "name:line".
  Block parse();

 private:
  // parser.cc
  [[noreturn]] void fail(const std::string& what) const;
  const Token& current() const { return tokens_[at_]; }
  const Token& take();
  bool is_operator(std::string_view text, size_t ahead = 0) const;
  bool is_word(std::string_view text, size_t ahead = 0) const;
  bool skip_operator(std::string_view text);
  bool skip_word(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_word(std::string_view text);
  void expect(TokenKind kind, const char* what);
  std::string take_name();
  ExprPtr make(ExprKind kind, int line, std::string name = "") const;
  void add(Expr* parent, ExprPtr child) const;  // a null child too
  ExprPtr pair(ExprKind kind, std::string name, ExprPtr left, ExprPtr right) const;

  // parse_expression.cc
  ExprPtr parse_expression();
  ExprPtr parse_tuple(bool with_condition = true);  // "a, b" without parentheses, or one expression
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_operators(int level);
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_constant_or_name();
  ExprPtr parse_parentheses();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_test(ExprPtr expr);
  ExprPtr parse_call_of(ExprPtr expr);
  std::string parse_dotted_name();
  void parse_arguments(Expr* call);

  // parse_statement.cc
  Block parse_block(std::initializer_list<std::string_view> ends);  // up to a tag with one of these names
  void parse_statement(Block* out);
  Stmt parse_if();
  Stmt parse_for();
  Stmt parse_set();
  Stmt parse_macro();
  Stmt parse_call();
  Stmt parse_filter_block();
  Stmt parse_with();
  Stmt parse_generation();
  Stmt parse_jump();  // break or continue
  Block body(std::initializer_list<std::string_view> ends);
  void end_tag(std::string_view name);
  Target parse_targets();
  Target parse_target();
  void parse_parameters(Stmt* statement);

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // around the statement, within its macro
};

}  // namespace headrace::jinja
