// Statements. Every function begins behind the tag's name and ends behind the tag of its end.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/parser.h"

namespace headrace::jinja {

namespace {

Stmt statement(StmtKind kind, int line) {
  Stmt out;
  out.kind = kind;
  out.line = line;
  return out;
}

}  // namespace

Block Parser::parse_block(std::initializer_list<std::string_view> ends) {
  if (++nesting_ > kMaxNesting) fail(str("expected at most ", kMaxNesting, " brackets and blocks within each other"));
  Block out;
  while (current().kind != TokenKind::kEnd) {
    if (current().kind == TokenKind::kText) {
      Stmt text = statement(StmtKind::kText, current().line);
      text.text = take().text;
      out.push_back(std::move(text));
    } else if (current().kind == TokenKind::kVariableBegin) {
      Stmt output = statement(StmtKind::kOutput, take().line);
      output.exprs.push_back(parse_tuple());
      expect(TokenKind::kVariableEnd, "'}}'");
      out.push_back(std::move(output));
    } else {
      take();
      const auto ends_here = [&](std::string_view end) { return is_word(end); };
      if (std::any_of(ends.begin(), ends.end(), ends_here)) break;
      parse_statement(&out);
    }
  }
  if (current().kind == TokenKind::kEnd && ends.size() > 0)
    fail(str("expected '", *(ends.end() - 1), "' for a block that is open"));
  --nesting_;
  return out;
}

// The body behind a tag whose arguments have been read, up to the name of the tag that ends it.
Block Parser::body(std::initializer_list<std::string_view> ends) {
  expect(TokenKind::kBlockEnd, "'%}'");
  return parse_block(ends);
}

void Parser::end_tag(std::string_view name) {
  expect_word(name);
  if ((name == "endmacro" || name == "endcall") && current().kind == TokenKind::kName) take();
  expect(TokenKind::kBlockEnd, "'%}'");
}

void Parser::parse_statement(Block* out) {
  using Parse = Stmt (Parser::*)();
  static constexpr std::pair<std::string_view, Parse> kStatements[] = {
      {"if", &Parser::parse_if},      {"for", &Parser::parse_for},
      {"set", &Parser::parse_set},    {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call},  {"filter", &Parser::parse_filter_block},
      {"with", &Parser::parse_with},  {"generation", &Parser::parse_generation},
      {"break", &Parser::parse_jump}, {"continue", &Parser::parse_jump}};
  const size_t begin = at_;
  const std::string name = take_name();
  for (const auto& [tag, parse] : kStatements) {
    if (name == tag) return out->push_back((this->*parse)());
  }
  at_ = begin;
  fail("expected if, for, set, macro, call, filter, with, generation, break or continue");
}

Stmt Parser::parse_if() {
  Stmt out = statement(StmtKind::kIf, current().line);
  do {
    out.exprs.push_back(parse_tuple(false));
    out.bodies.push_back(body({"elif", "else", "endif"}));
  } while (skip_word("elif"));
  if (skip_word("else")) out.bodies.push_back(body({"endif"}));
  end_tag("endif");
  return out;
}

Stmt Parser::parse_for() {
  Stmt out = statement(StmtKind::kFor, current().line);
  out.targets.push_back(parse_targets());
  expect_word("in");
  out.exprs.push_back(parse_tuple(false));
  out.exprs.push_back(skip_word("if") ? parse_expression() : nullptr);
  out.recursive = skip_word("recursive");
  ++loops_;
  out.bodies.push_back(body({"else", "endfor"}));
  --loops_;
  if (skip_word("else")) out.bodies.push_back(body({"endfor"}));
  end_tag("endfor");
  return out;
}

Stmt Parser::parse_set() {
  Stmt out = statement(StmtKind::kSet, current().line);
  out.targets.push_back(parse_targets());
  if (skip_operator("=")) {
    out.exprs.push_back(parse_tuple());
    expect(TokenKind::kBlockEnd, "'%}'");
    return out;
  }
  out.kind = StmtKind::kSetBlock;
  out.exprs.push_back(parse_filters(make(ExprKind::kCaptured, out.line)));
  out.bodies.push_back(body({"endset"}));
  end_tag("endset");
  return out;
}

void Parser::parse_parameters(Stmt* of) {
  expect_operator("(");
  while (!skip_operator(")")) {
    Parameter parameter{take_name(), nullptr};
    if (skip_operator("=")) {
      parameter.preset = parse_expression();
    } else if (!of->parameters.empty() && of->parameters.back().preset) {
      fail("expected '=': a parameter without a default follows one with");
    }
    of->parameters.push_back(std::move(parameter));
    if (!is_operator(")")) expect_operator(",");
  }
}

Stmt Parser::parse_macro() {
  Stmt out = statement(StmtKind::kMacro, current().line);
  out.text = take_name();
  parse_parameters(&out);
  const int loops = std::exchange(loops_, 0);
  out.bodies.push_back(body({"endmacro"}));
  loops_ = loops;
  end_tag("endmacro");
  return out;
}

Stmt Parser::parse_call() {
  Stmt out = statement(StmtKind::kCall, current().line);
  if (is_operator("(")) parse_parameters(&out);
  out.exprs.push_back(parse_expression());
  if (out.exprs[0]->kind != ExprKind::kCall) fail("expected a call of a macro");
  const int loops = std::exchange(loops_, 0);
  out.bodies.push_back(body({"endcall"}));
  loops_ = loops;
  end_tag("endcall");
  return out;
}

Stmt Parser::parse_filter_block() {
  Stmt out = statement(StmtKind::kFilterBlock, current().line);
  out.exprs.push_back(parse_filters(parse_filter(make(ExprKind::kCaptured, out.line))));
  out.bodies.push_back(body({"endfilter"}));
  end_tag("endfilter");
  return out;
}

Stmt Parser::parse_with() {
  Stmt out = statement(StmtKind::kScope, current().line);
  while (current().kind != TokenKind::kBlockEnd) {
    if (!out.targets.empty()) expect_operator(",");
    out.targets.push_back(parse_target());
    expect_operator("=");
    out.exprs.push_back(parse_expression());
  }
  out.bodies.push_back(body({"endwith"}));
  end_tag("endwith");
  return out;
}

// transformers' mark around what the assistant wrote; it prints its body.
Stmt Parser::parse_generation() {
  Stmt out = statement(StmtKind::kScope, current().line);
  out.bodies.push_back(body({"endgeneration"}));
  end_tag("endgeneration");
  return out;
}

Stmt Parser::parse_jump() {
  const bool ends = tokens_[at_ - 1].text == "break";
  Stmt out = statement(ends ? StmtKind::kBreak : StmtKind::kContinue, current().line);
  if (loops_ == 0) fail("expected a loop around break and continue");
  expect(TokenKind::kBlockEnd, "'%}'");
  return out;
}

Target Parser::parse_target() {
  Target out;
  if (skip_operator("(")) {
    out = parse_targets();
    expect_operator(")");
    return out;
  }
  static constexpr std::string_view kReserved[] = {"true", "True", "false", "False", "none", "None",
                                                   "not",  "and",  "or",    "if",    "in",   "is"};
  if (std::any_of(std::begin(kReserved), std::end(kReserved), [&](std::string_view word) { return is_word(word); }))
    fail("expected a name that can be set");
  out.name = take_name();
  if (skip_operator(".")) out.attribute = take_name();
  return out;
}

Target Parser::parse_targets() {
  if (++nesting_ > kMaxNesting) fail(str("expected at most ", kMaxNesting, " brackets within each other"));
  Target first = parse_target();
  --nesting_;
  if (!is_operator(",")) return first;
  Target out;
  out.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (is_word("in") || is_operator("=") || is_operator(")")) break;
    out.parts.push_back(parse_target());
  }
  return out;
}

}  // namespace headrace::jinja
