#include "runtime/commands/quality/perplexity.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/rounding.h"
#include "runtime/commands/report_json.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

struct Document {
  std::string name;
  std::vector<int32_t> ids;
};

// All documents are read and encoded before the first is scored, so that an error costs no work.
std::vector<Document> encode_documents(const PerplexityOptions& options, const Engine& engine) {
  const ReadOptions reading{.limit = {}, .interrupt = options.interrupt};
  const int64_t limit = engine.context_limit();
  std::vector<Document> documents;
  for (const std::string& file : expand_documents(options.documents, options.outputs)) {
    const std::string name = file == "-" ? "standard input" : file;
    std::vector<int32_t> ids = engine.encode_plain(read_document(file, reading));
    const auto tokens = static_cast<int64_t>(ids.size());
    if (options.most_tokens > 0 && tokens > options.most_tokens) ids.resize(static_cast<size_t>(options.most_tokens));
    if (ids.size() < 2) {
      throw_error(ExitCode::kBadInput, name,
                  str("has ", ids.size(), " token", ids.size() == 1 ? "" : "s", ": perplexity needs at least 2"),
                  options.most_tokens == 1 ? "Raise -p/--prompt-tokens." : "Use a longer text.");
    }
    if (static_cast<int64_t>(ids.size()) > limit) {
      throw_error(
          ExitCode::kBadInput, name,
          str("has ", tokens, " tokens, the context of ", engine.model_path(), " holds ", limit),
          str("Add -p ", limit, " to score its first ", limit, " tokens, or use a model with a longer context."));
    }
    documents.push_back({name, std::move(ids)});
  }
  return documents;
}

// What --against keeps between the two runs of a document: the final state of each row, which is far smaller
// than its logits.
MemoryBudget::Reservation reserve_states(const PerplexityOptions& options, const std::vector<Document>& documents,
                                         const Engine& engine) {
  uint64_t rows = 0;
  for (const Document& document : documents) rows = std::max<uint64_t>(rows, document.ids.size() - 1);
  if (!options.against) return {};
  const uint64_t row_bytes = static_cast<uint64_t>(engine.config().hidden) * dtype_bytes(engine.dtype());
  return engine.host_mem().reserve(rows * row_bytes, "the states that --against keeps of the longest document");
}

// The last token is predicted, but nothing is predicted from it: it is not part of the prompt.
GenerateResult score(const PerplexityOptions& options, const std::vector<int32_t>& ids, Engine& engine,
                     const PerplexityHooks& hooks, std::optional<PrefillType> prefill, StateComparison* compare) {
  GenerateOptions run;
  run.max_tokens = 1;
  run.speculate = false;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  run.interrupt = options.interrupt;
  run.score_next.assign(ids.begin() + 1, ids.end());
  run.prefill = prefill;
  run.compare = compare;
  return engine.generate({ids.begin(), ids.end() - 1}, run, hooks.progress);
}

double nats_of(const Document& document, const GenerateResult& result) {
  double sum = 0;
  for (size_t i = 0; i < result.log_probs.size(); ++i) {
    if (!std::isfinite(result.log_probs[i])) {
      throw_error(ExitCode::kBadInput, document.name,
                  str("the logits after ", i + 1, " tokens are not finite numbers: the model overflows on this text, ",
                      "or its file is damaged"));
    }
    sum -= static_cast<double>(result.log_probs[i]);
  }
  return sum;
}

PerplexityRow make_row(const Document& document, const GenerateResult& result) {
  PerplexityRow row{.document = document.name,
                    .tokens = static_cast<int64_t>(document.ids.size()),
                    .predicted = static_cast<int64_t>(result.log_probs.size()),
                    .seconds = result.timings.ttft_ms / 1000};
  row.nats_sum = nats_of(document, result);
  return row;
}

bool interrupted(const GenerateResult& result) {
  return result.log_probs.empty() || result.finish_reason == FinishReason::kInterrupted;
}

// Scores a document, first with the other prefill if there is one. None: it was interrupted.
std::optional<PerplexityRow> score_document(const PerplexityOptions& options, const Document& document, Engine& engine,
                                            const PerplexityHooks& hooks, PerplexityReport* report) {
  StateComparison comparison;
  StateComparison* const compare = options.against ? &comparison : nullptr;
  double against_nats = 0;
  if (options.against) {
    const GenerateResult other = score(options, document.ids, engine, hooks, options.against, compare);
    if (interrupted(other)) return std::nullopt;
    report->against = other.prefill_type;
    against_nats = nats_of(document, other);
  }
  const GenerateResult result = score(options, document.ids, engine, hooks, std::nullopt, compare);
  if (interrupted(result)) return std::nullopt;
  report->prefill_type = result.prefill_type;
  report->weight_types = result.weight_types;
  report->damage = result.damage;
  PerplexityRow row = make_row(document, result);
  row.against_nats_sum = against_nats;
  for (const float kl : comparison.kl) row.kl_sum += static_cast<double>(kl);
  row.same_first = std::count(comparison.same_first.begin(), comparison.same_first.end(), 1);
  return row;
}

// null: beyond what a double holds
ordered_json perplexity_of(const PerplexityRow& row) {
  return std::isfinite(row.perplexity()) ? ordered_json(to_decimals(row.perplexity(), 4)) : ordered_json();
}

ordered_json row_json(const PerplexityRow& row, bool compared) {
  ordered_json out = ordered_json::object();
  if (!row.document.empty()) out["document"] = row.document;
  out["tokens"] = row.tokens;
  out["predicted"] = row.predicted;
  out["nats"] = to_decimals(row.nats(), 6);
  out["perplexity"] = perplexity_of(row);
  if (compared) {
    out["against"] = {{"nats", to_decimals(row.against().nats(), 6)}, {"perplexity", perplexity_of(row.against())}};
    out["kl"] = to_decimals(row.kl(), 7);
    out["top1"] = to_decimals(row.top1(), 5);
  }
  out["seconds"] = to_decimals(row.seconds, 3);
  return out;
}

}  // namespace

double PerplexityRow::perplexity() const { return std::exp(nats()); }

PerplexityRow PerplexityRow::against() const {
  PerplexityRow other = *this;
  other.nats_sum = against_nats_sum;
  return other;
}

void PerplexityRow::add(const PerplexityRow& more) {
  tokens += more.tokens;
  predicted += more.predicted;
  nats_sum += more.nats_sum;
  seconds += more.seconds;
  against_nats_sum += more.against_nats_sum;
  kl_sum += more.kl_sum;
  same_first += more.same_first;
}

PerplexityRow PerplexityReport::all() const {
  PerplexityRow sum;
  for (const PerplexityRow& row : rows) sum.add(row);
  return sum;
}

PerplexityReport run_perplexity(const PerplexityOptions& options, const PerplexityHooks& hooks) {
  Engine engine(options.engine);
  if (hooks.on_engine) hooks.on_engine(engine);
  const DType dtype = engine.dtype();
  PerplexityReport report{.machine = read_machine(),
                          .device = engine.device().name(),
                          .model = engine.model_path(),
                          .dtype = dtype,
                          .k_type = options.engine.cache_type_k.value_or(dtype),
                          .v_type = options.engine.cache_type_v.value_or(dtype),
                          .prefill_type = {},
                          .against = {},
                          .weight_types = {},
                          .damage = {},
                          .rows = {}};
  const std::vector<Document> documents = encode_documents(options, engine);
  const MemoryBudget::Reservation states = reserve_states(options, documents, engine);
  for (const Document& document : documents) {
    const std::optional<PerplexityRow> row = score_document(options, document, engine, hooks, &report);
    report.interrupted = !row;
    if (!row) break;
    report.rows.push_back(*row);
    if (hooks.on_row) hooks.on_row(report);
  }
  return report;
}

std::string perplexity_json(const PerplexityReport& report) {
  ordered_json out = {{"program", "headrace bench quality"},
                      {"measures", "perplexity"},
                      {"machine", machine_json(report.machine, report.device)},
                      {"model", report.model},
                      {"dtype", dtype_name(report.dtype)},
                      {"weights", weights_json(report.weight_types)},
                      {"prefill_type", report.prefill_type},
                      {"cache_type_k", dtype_name(report.k_type)},
                      {"cache_type_v", dtype_name(report.v_type)}};
  const bool compared = !report.against.empty();
  if (compared) out["against_prefill_type"] = report.against;
  if (!report.damage.empty()) out["damaged_weights"] = report.damage;
  out["rows"] = list_json(report.rows, [&](const PerplexityRow& row) { return row_json(row, compared); });
  if (!report.rows.empty()) out["all_documents"] = row_json(report.all(), compared);
  out["interrupted"] = report.interrupted;
  return report_text(out);
}

}  // namespace headrace
