// The flags of partial verification: --verify and what is beside it.
#include "cli/flags/flag_groups.h"

namespace headrace {
namespace {

// 2%, 0.5%.
SetFlag percent_value(double* out) {
  return [out](const std::string& value) {
    const std::string wrong = "'" + value + "' is not a share of 0% to 100%, such as 2%";
    double percent = 0;
    if (!value.ends_with('%') || !double_value(&percent, 0, 100)(value.substr(0, value.size() - 1)).empty())
      return wrong;
    *out = percent / 100;
    return std::string();
  };
}

}  // namespace

SetFlag interval_value(int64_t* out) {
  const auto set = [out](const std::string& value) {
    if (value != "auto") return int_value(out, 1, kMaxPending)(value);
    *out = kAutoInterval;
    return std::string();
  };
  return {set, {"auto"}};
}

SetFlag budget_value(int64_t* out) {
  return [out](const std::string& value) {
    const std::string wrong = tokens_value(out)(value);
    if (!wrong.empty()) return wrong;
    return partial_budget_fits(*out) ? std::string() : "'" + value + "' is not a multiple of 64 of at most 16K";
  };
}

SetFlag window_value(int64_t* out) {
  return [out](const std::string& value) {
    int64_t tokens = 0;
    const std::string wrong = tokens_value(&tokens)(value);
    if (!wrong.empty()) return wrong;
    if (tokens % kPrefixTile != 0 || tokens > kTailWindow) {
      return str("'", value, "' is not a multiple of ", kPrefixTile, " of at most ", kTailWindow);
    }
    *out = tokens;
    return std::string();
  };
}

SetFlag partial_kind_value(PartialKind* out) {
  return choice_value<PartialKind>(out, {{"auto", PartialKind::kAuto},
                                         {"blocks", PartialKind::kBlocks},
                                         {"int4", PartialKind::kInt4},
                                         {"int8", PartialKind::kInt8}});
}

SetFlag optional_budget_value(std::optional<int64_t>* out) {
  return [out](const std::string& value) {
    int64_t budget = 0;
    const std::string wrong = budget_value(&budget)(value);
    if (wrong.empty()) *out = budget;
    return wrong;
  };
}

std::vector<Flag> verify_flags(VerifyOptions* o) {
  o->mode = VerifyMode::kAuto;
  const std::vector<std::pair<std::string, std::optional<VerifyMode>>> modes = {
      {"auto", VerifyMode::kAuto},
      {"lossless", VerifyMode::kLossless},
      {"approximate", VerifyMode::kApproximate},
      {"full", VerifyMode::kFull}};
  return {
      {"--verify", "MODE", choice_value<std::optional<VerifyMode>>(&o->mode, modes),
       "How much of the KV cache a step reads: full (all of it), lossless (most steps part of it; tokens are verified "
       "against all of it before they are printed, so the text is the same), approximate (most steps part of it; the "
       "text may differ) or auto (lossless if the KV cache does not stay on the device, or if a flag below is given; "
       "else full) [auto]"},
      {"--partial-kv", "KIND", partial_kind_value(&o->partial),
       "What the steps read that do not read the whole KV cache: int8 or int4 (a copy of the whole KV cache in fewer "
       "bits, on the device), blocks "
       "(the part of the KV cache that is most relevant), or auto (the first of these that fits) [auto]"},
      {"--partial-budget", "TOKENS", optional_budget_value(&o->budget),
       "Context tokens in the blocks of --partial-kv, besides the first and the most recent ones [4K]"},
      {"--refresh-interval", "N", interval_value(&o->interval),
       "Number of provisional tokens after which a step, a refresh, reads the whole KV cache: auto, or 1 to 192. auto "
       "chooses by measured "
       "times; with --verify approximate it is 20 [auto]"},
      {"--max-overturned", "PERCENT", percent_value(&o->max_overturned),
       "With --verify approximate: the share of provisional tokens that refreshes may find wrong, such as 2%; above it "
       "the run is lossless until the share is half of that [any]"},
  };
}

std::vector<Flag> block_flags(VerifyOptions* o) {
  return {
      {"--block-score", "HOW",
       choice_value<BlockScore>(
           &o->score,
           {{"quest", BlockScore::kQuest}, {"specpv", BlockScore::kSpecPv}, {"recent", BlockScore::kRecent}}),
       "Score that selects the blocks of the partial KV cache: quest, specpv or recent (the last ones) [quest]"},
      {"--block-reduce", "HOW",
       choice_value<BlockReduce>(
           &o->reduce, {{"mean", BlockReduce::kMean}, {"max", BlockReduce::kMax}, {"last", BlockReduce::kLast}}),
       "How the scores of several queries are combined: mean, max or last [mean]"},
      {"--block-queries", "WHICH",
       choice_value<BlockQueries>(&o->queries, {{"recent", BlockQueries::kRecent}, {"tree", BlockQueries::kTree}}),
       "Queries that select the blocks: recent (the prompt's last 16, then the first 64 of each refresh's tree, and "
       "those before a small tree) or tree (all of the tree's, and no others; the first step is a refresh) [recent]"},
      {"--block-window", "TOKENS", window_value(&o->window),
       "Most recent tokens that provisional steps see besides the blocks: 64, 128, 192 or 256, and up to 63 more "
       "[256]"},
  };
}

}  // namespace headrace
