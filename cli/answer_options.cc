#include "cli/answer_options.h"

#include <cstdio>

#include "runtime/commands/batch.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

std::string exact_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

std::string tree_text(const TreeShape& tree) {
  std::string text = str(tree.nodes, " ", exact_text(static_cast<double>(tree.threshold)));
  for (const TreeLevel& level : tree.levels) {
    for (const int64_t size : {level.rows, level.branch, level.width, level.keep, level.first_candidate}) {
      text += str(" ", size);
    }
  }
  return text;
}

}  // namespace

std::string answer_options(const EngineOptions& asked, const GenerateOptions& generate, const Engine& engine,
                           const std::vector<std::string>& prompt) {
  const auto type_name = [](const std::optional<DType>& type) { return type ? dtype_name(*type) : "auto"; };
  const SamplingSettings& s = generate.sampling;
  std::string text;
  const auto add = [&](const auto& value) {
    const std::string piece = str(value);
    text += str(piece.size(), ":", piece, ",");
  };
  add(files_stamp(engine.model_files()));
  add(dtype_name(engine.dtype()));
  // Weights that loading quantised have other values. CUDA multiplies quantised weights by a kernel of their own, and
  // prefill in 8 bits converts the values of their blocks, not those that dequantising has rounded.
  const bool int8 = engine.prefills_in_int8();
  const bool as_kept = int8 || engine.device().backend() == Backend::kCuda;
  for (const WeightTypeUse& use : engine.weight_types()) {
    if (use.quantised_by_load() || (as_kept && use.quantised())) add(str(use.stored, " ", use.loaded));
  }
  if (int8) add("prefill in int8");
  add(type_name(asked.cache_type_k));
  add(type_name(asked.cache_type_v));
  add(engine.context_limit());
  add(asked.use_chat_template);
  add(asked.chat_template);
  add(asked.thinking);
  if (!asked.reasoning_effort.empty()) add(asked.reasoning_effort);
  add(asked.chat_template_file.empty() ? "" : read_document(asked.chat_template_file));
  const RopeConfig& rope = engine.config().rope;
  for (double number :
       {rope.theta, rope.factor, static_cast<double>(rope.scaling), static_cast<double>(rope.original_max_positions)}) {
    add(exact_text(number));
  }
  for (const std::string& around : prompt) add(around);
  add(generate.max_tokens);
  add(generate.ignore_eos);
  if (generate.reasoning_budget >= 0) add(str("reasoning budget ", generate.reasoning_budget));
  if (generate.grammar) add(str("grammar ", generate.grammar->text));
  if (const PenaltySettings& p = generate.penalties; p.any()) {
    for (float number : {p.presence, p.frequency, p.repetition}) add(exact_text(static_cast<double>(number)));
  }
  for (float number : {s.temperature, s.top_p, s.min_p}) {
    add(exact_text(static_cast<double>(number)));
  }
  add(s.top_k);
  add(s.seed);
  const VerifyOptions& verify = asked.verify;
  if (verify.mode == VerifyMode::kApproximate) {  // the other modes give the text of plain decoding
    add(verify_mode_name(*verify.mode));
    add(verify.budget.value_or(kUsualBudget));
    add(verify.interval);
    add(static_cast<int>(verify.score));
    add(static_cast<int>(verify.reduce));
    if (verify.max_overturned < 1) add(str("overturned ", exact_text(verify.max_overturned)));
    if (verify.window != kTailWindow) add(str("window ", verify.window));
    if (verify.queries != BlockQueries::kRecent) add("queries of the tree");
    if (copy_type(verify.partial)) add(partial_kind_name(verify.partial));
    const DraftOptions& draft = asked.draft;
    add(spec_type_name(engine.draft_type()));
    add(draft.look_up ? "beside look-up" : "alone");
    add(draft.window);
    const RetrievalShape chunks = draft.retrieval.value_or(RetrievalShape{.chunks = -1});
    for (int64_t number : {chunks.chunks, chunks.rows, chunks.every}) add(number);
    add(draft.most_tokens);
    for (double number : {draft.rope.theta, draft.rope.factor}) add(exact_text(number));
    if (draft.rope.original_positions > 0) add(str("trained with ", draft.rope.original_positions));
    add(draft.rope.scaling ? rope_scaling_name(*draft.rope.scaling) : "own");
    add(static_cast<int>(engine.device().backend()));  // selects the tree of --tree auto
    add(draft.tree ? tree_text(*draft.tree) : "auto");
    add(files_stamp(engine.draft_files()));
    add(static_cast<int>(asked.weights));  // a draft's
  }
  return text;
}

}  // namespace headrace
