#include "runtime/engine/run_plan.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/draft/draft_model.h"
#include "runtime/speculation/policy/chain_forecast.h"

namespace headrace {
namespace {

// The average tree of --tree auto is not larger, and its rows are one group of a product.
constexpr int64_t kUsualTree = 64;
// On a CPU every row costs nearly as much as the first, so --tree auto chooses small trees: 3.7 nodes with SmolLM2-64K
// and EAGLE-3 on two cores.
constexpr int64_t kUsualTreeOfCpu = 4;
// Pending tokens at a refresh, if there is no estimate.
constexpr int64_t kUsualPending = 20;

// Draft tokens that a partial step accepts: the EAGLE-3 head of SmolLM2-64K on three books, in steps of 8 nodes
// (bench/results/partial_h200_quarter_streamed.json). A look-up's depend on the text alone.
constexpr double kEagle3Tau = 1.0;

std::optional<double> usual_tau(const std::string& draft) {
  if (draft.empty()) return 0;
  if (draft == spec_type_name(SpecType::kEagle3)) return kEagle3Tau;
  return std::nullopt;
}

// Estimates with the number of pending tokens that gives the most tokens/s, the aim of `--refresh-interval auto`.
RefreshEstimate estimate(const CostInput& input, const RunPlan& plan, const PassShape& refresh, const Prediction& steps,
                         double tau) {
  RefreshEstimate best{.rejected_share = usual_loss_rate(plan.partial, plan.grow_rows > 0, !plan.draft.empty()),
                       .tau = tau};
  const double token_ms = (steps.partial.ms() + steps.draft_ms) / (1 + tau);
  for (int64_t pending = 1; pending <= kMaxPending; ++pending) {
    if (plan.interval > 0 && pending != plan.interval) continue;
    PassShape shape = refresh;
    shape.queries = pending + 1;
    const double tokens = confirmed_of_chain(static_cast<double>(pending + 1), best.rejected_share);
    const double ms = step_cost(input, shape).ms() + steps.draft_ms + static_cast<double>(pending) * token_ms;
    if (tokens * 1e3 / ms <= best.tokens_per_s) continue;
    best.pending = pending;
    best.tokens = tokens;
    best.tokens_per_s = tokens * 1e3 / ms;
  }
  return best;
}

}  // namespace

ModelSizes model_sizes(const ModelConfig& config, const Weights& weights, const RowShape& rows) {
  std::vector<QuantisedBytes> quantised;
  const auto add = [&](const Weight& weight) {
    for (const WeightPart& part : std::span(weight.parts, static_cast<size_t>(weight.count))) {
      if (is_plain(part.type)) continue;
      const char* const name = weight_type_info(part.type).name;
      auto of_type = std::find_if(quantised.begin(), quantised.end(), [&](const auto& q) { return q.type == name; });
      if (of_type == quantised.end()) of_type = quantised.insert(of_type, {name, 0});
      of_type->bytes += weight_bytes(part.type, part.rows, weight.cols);
    }
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    const LayerWeights& layer = weights.layer(i);
    for (const Weight* weight : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) add(*weight);
  }
  add(weights.head());
  return {.layers = config.layers,
          .hidden = config.hidden,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .ffn = config.ffn,
          .vocab = config.vocab,
          .type_bytes = static_cast<int64_t>(dtype_bytes(weights.dtype())),
          .stored_layers_bytes = weights.layers_bytes(),
          .stored_head_bytes = stored_bytes(weights.head()),
          .quantised = std::move(quantised),
          .qk_norm = config.qk_norm,
          .rows = rows};
}

Prediction predict(const RunPlan& plan, const MachineRates& rates) {
  const CostInput input{.model = plan.sizes, .plan = plan.memory, .rates = rates};
  const int64_t committed = plan.prompt_tokens + (plan.context_tokens - plan.prompt_tokens) / 2;
  const int64_t usual = plan.tunes_trees && !rates.gpu ? kUsualTreeOfCpu : kUsualTree;
  const int64_t tree = plan.grow_rows > 0 ? 1 : std::min(plan.pass_rows, usual);
  Prediction out;
  out.prefill = prefill_cost(input, plan.prompt_tokens);
  // The first token needs its logits: one product with the head.
  const double head_bytes = static_cast<double>(plan.sizes.head_bytes());
  out.prefill.device_ms += head_bytes / rates.weights_gb_per_s * 1e-6;
  out.full = step_cost(input, {.mode = StepMode::kFull, .committed = committed, .queries = tree});
  if (!plan.draft.empty() && plan.draft_weights_bytes > 0) {
    out.draft_ms = draft_ms(plan.draft_weights_bytes, plan.draft_levels, rates);
  }
  out.has_partial = plan.partial.on();
  if (out.has_partial) {
    const int64_t pending = plan.interval > 0 ? plan.interval : kUsualPending;
    const int64_t grown = plan.grow_rows > 0 ? plan.grow_rows : tree;
    out.partial = step_cost(
        input, {.mode = StepMode::kPartial, .committed = committed, .queries = grown, .partial = plan.partial});
    PassShape refresh{.mode = StepMode::kRefresh, .committed = committed, .queries = pending + tree};
    out.refresh = step_cost(input, refresh);
    const std::optional<double> tau = usual_tau(plan.draft);
    if (plan.verify == VerifyMode::kLossless && tau && out.partial.known && out.refresh.known) {
      out.estimate = estimate(input, plan, refresh, out, *tau);
      refresh.queries = out.estimate->pending + tree;
      out.refresh = step_cost(input, refresh);
    }
  }
  return out;
}

}  // namespace headrace
