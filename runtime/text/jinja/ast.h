// A parsed template as trees of expressions and statements. Built by the parser, immutable after that; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,     // constant
  kName,         // name
  kList,         // args
  kTuple,        // args
  kDict,         // args: key, value, key, value
  kAttribute,    // args[0].name
  kItem,         // args[0][args[1]]
  kSlice,        // args[0][args[1]:args[2]:args[3]]; those not given are null
  kCall,         // args[0](args[1:], named)
  kFilter,       // args[0]|name(args[1:], named)
  kTest,         // args[0] is name(args[1:], named)
  kNot,          // args[0]
  kUnary,        // name ("-" or "+"), args[0]
  kBinary,       // name, args[0], args[1]
  kCompare,      // args[0] operators[0] args[1] operators[1] args[2]
  kAnd,          // args[0], args[1]
  kOr,           // args[0], args[1]
  kConditional,  // args[0] if args[1] else args[2], which may be null
  kCaptured,     // the text of the block whose filters these are
};

struct Expr {
  ExprKind kind;
  int line;
  std::string name;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
  int height = 1;  // of the tree
};

// What an assignment sets: a name, an attribute of a namespace, or several of these.
struct Target {
  std::string name, attribute;  // attribute: empty unless "name.attribute"
  std::vector<Target> parts;    // not empty: unpacks a list
};

struct Parameter {
  std::string name;
  ExprPtr preset;  // null: none
};

struct Stmt;
using Block = std::vector<Stmt>;

enum class StmtKind : uint8_t {
  kText,         // text
  kOutput,       // exprs[0]
  kIf,           // exprs: conditions; bodies: one each, and one more for else
  kFor,          // for targets[0] in exprs[0] if exprs[1] (may be null); bodies[0], bodies[1] (else)
  kSet,          // targets[0] = exprs[0]
  kSetBlock,     // targets[0] = bodies[0] through exprs[0], its filters
  kMacro,        // text(parameters): bodies[0]
  kCall,         // exprs[0] with caller(parameters): bodies[0]
  kFilterBlock,  // bodies[0] through exprs[0]
  kScope,        // with targets = exprs: bodies[0]; also generation
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind;
  int line;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<Target> targets;
  std::vector<Parameter> parameters;
  std::vector<Block> bodies;
  bool recursive = false;
};

}  // namespace headrace::jinja
