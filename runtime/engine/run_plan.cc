#include "runtime/engine/run_plan.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/draft/draft_model.h"
#include "runtime/engine/substitute_loss.h"
#include "runtime/model/substitutes.h"
#include "runtime/speculation/policy/chain_forecast.h"

namespace headrace {
namespace {

void add_quantised(const Weight& weight, std::vector<QuantisedBytes>* quantised, int64_t count = 1) {
  for (const WeightPart& part : std::span(weight.parts, static_cast<size_t>(weight.count))) {
    if (is_plain(part.type)) continue;
    const char* const name = weight_type_info(part.type).name;
    auto of_type = std::find_if(quantised->begin(), quantised->end(), [&](const auto& q) { return q.type == name; });
    if (of_type == quantised->end()) of_type = quantised->insert(of_type, {name, 0});
    of_type->bytes += static_cast<uint64_t>(count) * weight_bytes(part.type, part.rows, weight.cols);
  }
}

ExpertSizes expert_sizes(const ModelConfig& config, const Weights& weights) {
  ExpertSizes sizes;
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    const std::optional<ExpertsSpec>& spec = config.layer(i).ffn.experts;
    if (!spec) continue;
    const LayerWeights& layer = weights.layer(i);
    sizes.count = spec->count;
    sizes.used = spec->used;
    sizes.ffn = spec->width;
    sizes.stored_bytes += layer.experts_bytes();
    for (const Weight* weight : {&layer.experts.gate_up, &layer.experts.down})
      add_quantised(*weight, &sizes.quantised, spec->count);
  }
  return sizes;
}

RecurrentSizes recurrent_sizes(const ModelConfig& config) {
  RecurrentSizes sizes;
  for (const LayerSpec& layer : config.layers) {
    if (layer.has_attention()) continue;
    const DeltaNetSpec& delta = layer.delta_net();
    sizes = {.layers = sizes.layers + 1,
             .k_heads = delta.k_heads,
             .v_heads = delta.v_heads,
             .k_dim = delta.k_dim,
             .v_dim = delta.v_dim};
  }
  return sizes;
}

// The average tree of --tree auto is not larger, and its rows are one group of a product.
constexpr int64_t kUsualTree = 64;
// On a CPU every row costs nearly as much as the first, so --tree auto chooses small trees: 3.7 nodes with SmolLM2-64K
// and EAGLE-3 on two cores.
constexpr int64_t kUsualTreeOfCpu = 4;
// Recurrent layers compute the nodes of a tree one after another, so each one costs on a GPU as well: a chain of three
// tokens, the usual one of MTP.
constexpr TreeLimits kUsualTreeOfRecurrent = {.nodes = 4, .levels = 3};
// Pending tokens at a refresh, if there is no estimate.
constexpr int64_t kUsualPending = 20;

// Draft tokens that a partial step accepts: the EAGLE-3 head of SmolLM2-64K on three books, in steps of 8 nodes
// (bench/results/partial_h200_quarter_streamed.json). A look-up's depend on the text alone.
constexpr double kEagle3Tau = 1.0;
// The MTP block of a small trained hybrid on books, in chains of three at T = 0.8.
constexpr double kMtpTau = 1.05;

// Of the tokens of a small hybrid trained on books, at T = 0.8 and 16K and 32K tokens, by the kind of copy
// (bench/results/overturned_h200_hybrid.json). In bf16: in f32 an int8 copy overturned 0.11%.
constexpr double kHybridInt8Loss = 0.0053, kHybridInt4Loss = 0.0065;

double rows_loss_rate(const RunPlan& plan) {
  if (plan.recurrent() && plan.partial.copy)
    return plan.partial.copy == DType::kInt4 ? kHybridInt4Loss : kHybridInt8Loss;
  return usual_loss_rate(plan.partial, plan.grow_rows > 0, !plan.draft.empty());
}

double loss_rate(const RunPlan& plan) {
  const double rows = rows_loss_rate(plan);
  return plan.substitute ? joined_loss(rows, substitute_loss(*plan.substitute, plan.grow_rows > 0)) : rows;
}

std::optional<double> usual_tau(const std::string& draft) {
  if (draft.empty()) return 0;
  if (draft == spec_type_name(SpecType::kEagle3)) return kEagle3Tau;
  if (draft == spec_type_name(SpecType::kMtp)) return kMtpTau;
  return std::nullopt;
}

// The trees of a run's steps.
TreeLimits usual_tree(const RunPlan& plan, bool gpu) {
  TreeLimits tree = {.nodes = kUsualTree, .levels = plan.draft_levels};
  if (plan.tunes_trees && !gpu) tree.nodes = kUsualTreeOfCpu;
  if (plan.tunes_trees && plan.recurrent()) tree = kUsualTreeOfRecurrent;
  return {.nodes = std::min(plan.pass_rows, tree.nodes), .levels = std::min(plan.draft_levels, tree.levels)};
}

struct Predictor {
  const RunPlan& plan;
  const CostInput input;
  const CostInput partial_input;  // of partial steps
  const TreeLimits usual;
  const int64_t committed,
      tree;  // rows in the full KV, half through with the output; nodes of a step that does not grow

  Predictor(const RunPlan& of, const MachineRates& rates)
      : plan(of),
        input{.model = of.sizes, .plan = of.memory, .rates = rates},
        partial_input(of_partial_steps(of, rates)),
        usual(usual_tree(of, rates.gpu)),
        committed(of.prompt_tokens + (of.context_tokens - of.prompt_tokens) / 2),
        tree(of.grow_rows > 0 ? 1 : usual.nodes) {}

  static CostInput of_partial_steps(const RunPlan& plan, const MachineRates& rates) {
    CostInput in = {.model = plan.substitute ? plan.partial_sizes : plan.sizes, .plan = plan.memory, .rates = rates};
    if (plan.substitute) in.plan.host_weights_bytes = 0;
    return in;
  }
  double draft() const {
    if (plan.draft.empty() || plan.draft_pass.bytes == 0) return 0;
    return draft_ms(plan.draft_pass, usual.levels, input.rates);
  }
  PassCost full() const { return step_cost(input, {.committed = committed, .queries = tree}); }
  PassCost partial() const {
    return step_cost(partial_input, {.mode = StepMode::kPartial,
                                     .committed = committed,
                                     .queries = plan.grow_rows > 0 ? plan.grow_rows : tree,
                                     .partial = plan.partial});
  }
  // With `pending` tokens. A tree of them keeps more nodes than its first choices.
  PassCost refresh(int64_t pending, double tau) const {
    int64_t nodes = pending + tree;
    if (plan.grow_rows > 0) {
      const double kept =
          usual_kept_nodes(plan.partial, !plan.draft.empty()) * static_cast<double>(pending) / (1 + tau);
      nodes = std::clamp(static_cast<int64_t>(kept), nodes, std::max(nodes, plan.pass_rows + plan.most_pending));
    }
    return step_cost(input,
                     {.mode = StepMode::kRefresh, .committed = committed, .queries = nodes, .accepted = pending + 1});
  }

  // With the number of pending tokens that gives the most tokens/s, the aim of `--refresh-interval auto`.
  RefreshEstimate estimate(double step_ms, double tau) const {
    RefreshEstimate best{.rejected_share = loss_rate(plan), .tau = tau};
    const double token_ms = (step_ms + draft()) / (1 + tau);
    for (int64_t pending = 1; pending <= plan.most_pending; ++pending) {
      if (plan.interval > 0 && pending != plan.interval) continue;
      const double tokens = confirmed_of_chain(static_cast<double>(pending + 1), best.rejected_share);
      const double ms = refresh(pending, tau).ms() + draft() + static_cast<double>(pending) * token_ms;
      if (tokens * 1e3 / ms <= best.tokens_per_s) continue;
      best.pending = pending;
      best.tokens = tokens;
      best.tokens_per_s = tokens * 1e3 / ms;
    }
    return best;
  }
};

}  // namespace

ModelSizes model_sizes(const ModelConfig& config, const Weights& weights, const RowShape& rows) {
  std::vector<QuantisedBytes> quantised;
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    const LayerWeights& layer = weights.layer(i);
    for (const Weight* weight : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      add_quantised(*weight, &quantised);
    }
  }
  add_quantised(weights.head(), &quantised);
  const AttentionSpec& attention = config.attention();
  int64_t windows = 0, window = 0, window_width = 0, window_kv_heads = 0, window_head_dim = 0, attention_weights = 0;
  int64_t reading = 0, ffn = 0;
  for (const LayerSpec& layer : config.layers) {
    ffn += layer.ffn.width;
    if (!layer.has_attention()) continue;
    attention_weights += config.hidden * (layer.in_width() + layer.out_width() + 3 * layer.token_width);
    if (layer.attention().window == 0) {
      reading += layer.keeps_rows() ? 0 : 1;
      continue;
    }
    ++windows;
    window = layer.attention().window;
    window_width = layer.attention().q_width();
    window_kv_heads = layer.attention().kv_heads;
    window_head_dim = layer.attention().head_dim;
  }
  return {.layers = config.layer_count(),
          .hidden = config.hidden,
          .heads = attention.heads,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .ffn = ffn / config.layer_count(),  // of a layer on average
          .vocab = config.vocab,
          .type_bytes = static_cast<int64_t>(dtype_bytes(weights.dtype())),
          .stored_layers_bytes = weights.layers_bytes(),
          .stored_head_bytes = stored_bytes(weights.head()),
          .quantised = std::move(quantised),
          .attention_weights = attention_weights,
          .qk_norm = attention.qk_norm,
          .gated = attention.gated_output,
          .rows = rows,
          .reading_layers = reading,
          .recurrent = recurrent_sizes(config),
          .window_layers = windows,
          .window = window,
          .window_width = window_width,
          .window_kv_heads = window_kv_heads,
          .window_head_dim = window_head_dim,
          .experts = expert_sizes(config, weights)};
}

// Models with experts have no substitutes.
ModelSizes substituted_sizes(ModelSizes sizes, const Weights& weights, WeightType substitute, int64_t layers) {
  const Substitutes* const substitutes = weights.possible_substitutes(substitute);
  CHECK(substitutes != nullptr && layers <= weights.layer_count(), "layers=", layers);
  sizes.quantised.clear();
  sizes.stored_layers_bytes = 0;
  for (int64_t i = 0; i < weights.layer_count(); ++i) {
    const LayerWeights& layer = i < weights.layer_count() - layers ? weights.layer(i) : substitutes->layer(i);
    for (const Weight* weight : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      add_quantised(*weight, &sizes.quantised);
      sizes.stored_layers_bytes += stored_bytes(*weight);
    }
  }
  add_quantised(weights.head(), &sizes.quantised);
  return sizes;
}

DraftPass mtp_pass(const ModelConfig& config, const Weights& weights, int64_t rows) {
  CHECK(weights.mtp() != nullptr);
  const MtpWeights& block = *weights.mtp();
  const LayerWeights& layer = block.layer;
  DraftPass pass;
  const auto add = [&](const Weight& weight, int64_t count) {
    pass.bytes += static_cast<uint64_t>(count) * stored_bytes(weight);
    add_quantised(weight, &pass.quantised, count);
  };
  for (const Weight* weight :
       {&block.fc, &layer.qkv, &layer.output, &layer.gate_up, &layer.down, &layer.experts.router, &weights.head()}) {
    add(*weight, 1);
  }
  if (layer.spec.ffn.experts) {  // those of one row
    add(layer.experts.gate_up, layer.spec.ffn.experts->used);
    add(layer.experts.down, layer.spec.ffn.experts->used);
  }
  const int64_t values = 2 * layer.spec.attention().kv_width() * rows;
  pass.rows_bytes = static_cast<uint64_t>(values) * dtype_bytes(weights.dtype());
  pass.prompt_weights = (2 * config.hidden + layer.spec.in_width()) * config.hidden;
  return pass;
}

Prediction predict(const RunPlan& plan, const MachineRates& rates) {
  const Predictor predictor(plan, rates);
  Prediction out;
  out.prefill = prefill_cost(predictor.input, plan.prompt_tokens);
  // The first token needs its logits: one product with the head.
  const double head_bytes = static_cast<double>(plan.sizes.head_bytes());
  out.prefill.device_ms += head_bytes / rates.weights_gb_per_s * 1e-6;
  out.prefill.device_ms += draft_prefill_ms(plan.draft_pass, plan.prompt_tokens, rates);
  out.full = predictor.full();
  out.draft_ms = predictor.draft();
  out.has_partial = plan.partial.on();
  const std::optional<double> tau = usual_tau(plan.draft);
  if (plan.verify != VerifyMode::kApproximate) out.tokens_per_s = predicted_tokens_per_s(plan, rates);
  out.at_least = !tau;
  if (!out.has_partial) return out;
  out.partial = predictor.partial();
  out.refresh = predictor.refresh(plan.interval > 0 ? plan.interval : kUsualPending, tau.value_or(0));
  if (plan.verify == VerifyMode::kLossless && tau && out.partial.known && out.refresh.known) {
    out.estimate = predictor.estimate(out.partial.ms(), *tau);
    out.refresh = predictor.refresh(out.estimate->pending, *tau);
  }
  return out;
}

std::optional<double> predicted_tokens_per_s(const RunPlan& plan, const MachineRates& rates) {
  const Predictor predictor(plan, rates);
  const double tau = usual_tau(plan.draft).value_or(0);
  if (!plan.partial.on()) {
    const PassCost full = predictor.full();
    return full.known ? std::optional((1 + tau) * 1e3 / (full.ms() + predictor.draft())) : std::nullopt;
  }
  const PassCost partial = predictor.partial();
  if (!partial.known || !predictor.refresh(kUsualPending, tau).known) return std::nullopt;
  return predictor.estimate(partial.ms(), tau).tokens_per_s;
}

}  // namespace headrace
