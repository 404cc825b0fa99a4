#include "runtime/grammar/text_body.h"

#include <optional>
#include <utility>

#include "cache/base.h"
#include "runtime/grammar/intersection.h"
#include "runtime/grammar/json_parts.h"
#include "runtime/grammar/pattern.h"

namespace headrace {
namespace {

struct Rule {
  Grammar grammar;
  Second how = Second::kHolds;
};

Rule pattern_rule(const std::string& pattern, Second how, const std::string& source) {
  Rule rule{.grammar = {}, .how = how};
  rule.grammar.start = pattern_body(&rule.grammar, pattern, source, kReturnNode);
  return rule;
}

Rule length_rule(int32_t min, int32_t max) {
  Rule rule;
  const int32_t character = json_any_char(&rule.grammar, kReturnNode);
  rule.grammar.start = rule.grammar.loop(character, min, max, kReturnNode);
  return rule;
}

std::vector<Rule> rules_of(const TextRules& rules, const std::string& source) {
  std::vector<Rule> all;
  std::vector<std::string> without = rules.without;
  const auto add = [&](const std::string& pattern) {
    const PatternParts parts = pattern_parts(pattern);
    all.push_back(pattern_rule(parts.rest, Second::kHolds, source));
    for (const std::string& one : parts.with) all.push_back(pattern_rule(one, Second::kHolds, source));
    without.insert(without.end(), parts.without.begin(), parts.without.end());
  };
  for (const std::string& pattern : rules.with) add(pattern);
  if (all.empty() || rules.min > 0 || rules.max >= 0) all.push_back(length_rule(rules.min, rules.max));
  for (const std::string& pattern : without) all.push_back(pattern_rule(pattern, Second::kFails, source));
  return all;
}

}  // namespace

int32_t text_body(Grammar* g, const TextRules& rules, const std::string& source, size_t* states_left, int32_t next) {
  std::vector<Rule> all = rules_of(rules, source);
  Grammar joined = std::move(all.front().grammar);
  for (size_t i = 1; i < all.size(); ++i) {
    Grammar both;
    const std::optional<int32_t> start =
        add_intersection(&both, joined, all[i].grammar, all[i].how, states_left, kReturnNode);
    if (!start) {
      throw_error(ExitCode::kBadInput, source,
                  "has patterns, formats and lengths that are too large to be combined: drop one of them");
    }
    both.start = *start;
    drop_endless(&both);
    joined = std::move(both);
  }
  return g->call(g->append(joined), next);
}

}  // namespace headrace
