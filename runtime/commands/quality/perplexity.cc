#include "runtime/commands/quality/perplexity.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/rounding.h"
#include "runtime/commands/machine_json.h"
#include "runtime/commands/report.h"
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

// The last token is predicted, but nothing is predicted from it: it is not part of the prompt.
GenerateResult score(const PerplexityOptions& options, const std::vector<int32_t>& ids, Engine& engine,
                     Progress* progress) {
  GenerateOptions run;
  run.max_tokens = 1;
  run.speculate = false;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  run.interrupt = options.interrupt;
  run.score_next.assign(ids.begin() + 1, ids.end());
  return engine.generate({ids.begin(), ids.end() - 1}, run, progress);
}

PerplexityRow make_row(const Document& document, const GenerateResult& result) {
  PerplexityRow row{.document = document.name,
                    .tokens = static_cast<int64_t>(document.ids.size()),
                    .predicted = static_cast<int64_t>(result.log_probs.size()),
                    .seconds = result.timings.ttft_ms / 1000};
  for (size_t i = 0; i < result.log_probs.size(); ++i) {
    if (!std::isfinite(result.log_probs[i])) {
      throw_error(ExitCode::kBadInput, document.name,
                  str("the logits after ", i + 1, " tokens are not finite numbers: the model overflows on this text, ",
                      "or its file is damaged"));
    }
    row.nats_sum -= static_cast<double>(result.log_probs[i]);
  }
  return row;
}

ordered_json row_json(const PerplexityRow& row) {
  ordered_json out = ordered_json::object();
  if (!row.document.empty()) out["document"] = row.document;
  out["tokens"] = row.tokens;
  out["predicted"] = row.predicted;
  out["nats"] = to_decimals(row.nats(), 6);
  // null: beyond what a double holds
  out["perplexity"] = std::isfinite(row.perplexity()) ? ordered_json(to_decimals(row.perplexity(), 4)) : ordered_json();
  out["seconds"] = to_decimals(row.seconds, 3);
  return out;
}

}  // namespace

double PerplexityRow::perplexity() const { return std::exp(nats()); }

void PerplexityRow::add(const PerplexityRow& more) {
  tokens += more.tokens;
  predicted += more.predicted;
  nats_sum += more.nats_sum;
  seconds += more.seconds;
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
                          .weight_types = {},
                          .damage = {},
                          .rows = {}};
  for (const Document& document : encode_documents(options, engine)) {
    const GenerateResult result = score(options, document.ids, engine, hooks.progress);
    report.interrupted = result.log_probs.empty() || result.finish_reason == FinishReason::kInterrupted;
    if (report.interrupted) break;
    report.weight_types = result.weight_types;
    report.damage = result.damage;
    report.rows.push_back(make_row(document, result));
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
                      {"weights", ordered_json::parse(weights_json(report.weight_types))},
                      {"cache_type_k", dtype_name(report.k_type)},
                      {"cache_type_v", dtype_name(report.v_type)}};
  if (!report.damage.empty()) out["damaged_weights"] = report.damage;
  out["rows"] = ordered_json::array();
  for (const PerplexityRow& row : report.rows) out["rows"].push_back(row_json(row));
  if (!report.rows.empty()) out["all_documents"] = row_json(report.all());
  out["interrupted"] = report.interrupted;
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace headrace
