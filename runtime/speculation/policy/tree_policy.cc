#include "runtime/speculation/policy/tree_policy.h"

#include <algorithm>
#include <charconv>

namespace headrace {
namespace {

// Appends a level that ranks `branch` children of each node of the previous frontier, and forwards `width` of them.
void add_level(TreeShape* shape, int64_t branch, int64_t width, int64_t keep) {
  const bool root = shape->levels.empty();
  const int64_t rows = root ? 1 : shape->levels.back().width;
  shape->levels.push_back({rows, branch, std::min(width, rows * branch), std::min(std::max(width, keep), rows * branch),
                           shape->candidates()});
}

// The last level's frontier is not forwarded.
TreeShape finished(TreeShape shape, int64_t nodes) {
  shape.levels.back().width = 0;
  shape.nodes = std::min(nodes, 1 + shape.candidates());
  return shape;
}

// ---- Parsing --------------------------------------------------------------------------------------------------------

constexpr const char* kForms =
    "give auto, eagle2[:nodes[,depth[,topk]]], opt[:nodes[,depth[,threshold]]], beams:width,width,… or chain:tokens";

struct Request {
  std::string_view text, kind, arguments;
  bool has_arguments;
  std::string where;

  [[noreturn]] void refuse(const std::string& what, const std::string& hint = kForms) const {
    throw_error(ExitCode::kUsage, where, str("'", text, "': ", what), hint);
  }
};

template <typename Number>
bool parse_number(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> parts_of(const Request& request, size_t most) {
  std::vector<std::string_view> parts;
  if (!request.has_arguments) return parts;
  for (std::string_view rest = request.arguments;;) {
    const size_t comma = rest.find(',');
    parts.push_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (parts.size() > most) request.refuse(str(parts.size(), " values where at most ", most, " belong"));
  return parts;
}

int64_t integer(const Request& request, std::string_view text, const char* name, int64_t low, int64_t high) {
  int64_t value = 0;
  if (!parse_number(text, &value)) request.refuse(str(name, " '", text, "' is not a number"));
  if (value < low || value > high) request.refuse(str(name, " ", value, " is not in [", low, ", ", high, "]"));
  return value;
}

int64_t optional_integer(const Request& request, const std::vector<std::string_view>& parts, size_t index,
                         const char* name, int64_t low, int64_t high, int64_t otherwise) {
  return index < parts.size() ? integer(request, parts[index], name, low, high) : otherwise;
}

TreeShape parse_eagle2(const Request& request) {
  const auto parts = parts_of(request, 3);
  const int64_t nodes = optional_integer(request, parts, 0, "nodes", 2, kMaxTreeNodes, 60);
  const int64_t depth = optional_integer(request, parts, 1, "depth", 0, kMaxTreeDepth - 1, 7);
  const int64_t branch = optional_integer(request, parts, 2, "topk", 1, kMaxBranch, 10);
  return eagle2_shape(nodes, depth, branch);
}

TreeShape parse_opt(const Request& request) {
  const auto parts = parts_of(request, 3);
  const int64_t nodes = optional_integer(request, parts, 0, "nodes", 2, kMaxTreeNodes, 51);
  const int64_t depth = optional_integer(request, parts, 1, "depth", 1, kMaxTreeDepth, 10);
  float threshold = 0.7f;
  if (parts.size() > 2 && !(parse_number(parts[2], &threshold) && threshold >= 0 && threshold <= 1)) {
    request.refuse(str("threshold '", parts[2], "' is not a number in [0, 1]"));
  }
  return opt_shape(nodes, depth, threshold);
}

TreeShape parse_beams(const Request& request) {
  std::vector<int64_t> widths;
  int64_t nodes = 1;
  for (const std::string_view part : parts_of(request, static_cast<size_t>(kMaxTreeDepth))) {
    widths.push_back(integer(request, part, "width", 1, kMaxFrontier));
    nodes += widths.back();
  }
  if (widths.empty()) request.refuse("no widths");
  if (nodes > kMaxTreeNodes) {
    request.refuse(str(nodes, " nodes with the root; a tree has at most ", kMaxTreeNodes),
                   "give fewer or narrower levels");
  }
  return beams_shape(widths);
}

TreeShape parse_chain(const Request& request) {
  const auto parts = parts_of(request, 1);
  if (parts.empty()) request.refuse("no number of tokens");
  return chain_shape(integer(request, parts[0], "tokens", 1, kMaxTreeNodes - 1));
}

}  // namespace

int64_t TreeShape::candidates() const {
  return levels.empty() ? 0 : levels.back().first_candidate + levels.back().keep;
}

int64_t TreeShape::widest() const {
  int64_t most = 1;
  for (const TreeLevel& level : levels) most = std::max(most, level.rows);
  return most;
}

TreeShape TreeShape::within(const TreeLimits& limits) const {
  const int64_t most = std::min(nodes, limits.nodes), others = most - 1;
  CHECK(others >= 1 && limits.levels >= 1, "nodes=", limits.nodes, " levels=", limits.levels);
  TreeShape result;
  result.threshold = threshold;
  for (const TreeLevel& level : levels) {
    if (static_cast<int64_t>(result.levels.size()) == limits.levels) break;
    add_level(&result, level.branch, std::min(level.width, others), std::min(level.keep, others));
  }
  return finished(std::move(result), most);
}

TreeShape eagle2_shape(int64_t nodes, int64_t depth, int64_t branch) {
  TreeShape shape;
  for (int64_t level = 0; level <= depth; ++level) add_level(&shape, branch, branch, nodes - 1);
  return finished(std::move(shape), nodes);
}

TreeShape opt_shape(int64_t nodes, int64_t depth, float threshold) {
  TreeShape shape;
  shape.threshold = threshold;
  const int64_t branch = std::min(nodes - 1, kMaxBranch), width = std::min(nodes - 1, kMaxFrontier);
  for (int64_t level = 0; level < depth; ++level) add_level(&shape, branch, width, nodes - 1);
  return finished(std::move(shape), nodes);
}

TreeShape beams_shape(std::span<const int64_t> widths) {
  CHECK(!widths.empty());
  TreeShape shape;
  for (int64_t width : widths) add_level(&shape, width, width, width);
  const int64_t nodes = 1 + shape.candidates();  // before the move: a call's arguments have no order
  return finished(std::move(shape), nodes);
}

TreeShape chain_shape(int64_t tokens) { return beams_shape(std::vector<int64_t>(static_cast<size_t>(tokens), 1)); }

std::optional<TreeShape> parse_tree(std::string_view text, const std::string& where) {
  const size_t colon = text.find(':');
  const bool has_arguments = colon != std::string_view::npos;
  const Request request{text, text.substr(0, colon), has_arguments ? text.substr(colon + 1) : "", has_arguments, where};
  if (request.kind == "eagle2") return parse_eagle2(request);
  if (request.kind == "opt") return parse_opt(request);
  if (request.kind == "beams") return parse_beams(request);
  if (request.kind == "chain") return parse_chain(request);
  if (request.kind != "auto") request.refuse(str("'", request.kind, "' is not a kind of tree"));
  if (has_arguments) request.refuse("auto takes no values");
  return std::nullopt;
}

}  // namespace headrace
