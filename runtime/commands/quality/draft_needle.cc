#include "runtime/commands/quality/draft_needle.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/host/clock.h"
#include "runtime/base/rounding.h"
#include "runtime/commands/quality/needle.h"
#include "runtime/commands/report_json.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

// A prompt that ends within the answer. `forced`: the tokens after it, the last of the prompt's text and the number's.
struct HiddenNumber {
  std::vector<int32_t> prompt, forced;
};

// `text` contains the sentence. The answer repeats the sentence, so that the number has the same tokens in both places:
// many tokenizers join its first token with the preceding text.
HiddenNumber ask_for(const Engine& engine, const std::string& text, const std::string& number) {
  const auto encode = [&](const std::string& answer) {
    return engine.tokenizer().encode(answer, AddBos::kNo, SpecialTokens::kAsText);
  };
  const std::string sentence = needle_sentence(number);
  const std::string beginning = sentence.substr(0, sentence.find(number));
  const std::vector<int32_t> before = encode(beginning), answer = encode(beginning + number);
  const auto differs = std::mismatch(before.begin(), before.end(), answer.begin(), answer.end()).second;
  CHECK(differs != answer.begin() && differs != answer.end());
  HiddenNumber hidden{.prompt = document_prompt(engine, text, kNeedleQuestion), .forced = {differs - 1, answer.end()}};
  hidden.prompt.insert(hidden.prompt.end(), answer.begin(), differs - 1);
  return hidden;
}

GenerateResult follow(const QualityOptions& options, const HiddenNumber& hidden, Engine& engine, Progress* progress) {
  GenerateOptions run;
  run.max_tokens = static_cast<int64_t>(hidden.forced.size());
  run.forced = hidden.forced;
  run.ignore_eos = true;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  run.tree_limits = TreeLimits{.nodes = 2, .levels = 1};
  run.interrupt = options.interrupt;
  return engine.generate(hidden.prompt, run, progress);
}

void count(const std::vector<ForcedToken>& tokens, DraftNeedleRow* row) {
  row->tokens = static_cast<int64_t>(tokens.size());
  for (const ForcedToken& token : tokens) {
    CHECK(token.draft.has_value());
    row->first += token.draft->first ? 1 : 0;
    row->target_first += token.sampled ? 1 : 0;
    const bool absent = std::isinf(token.draft->log_prob);
    row->absent += absent ? 1 : 0;
    row->nats_sum -= absent ? 0 : token.draft->log_prob;
  }
}

DraftNeedleReport beginning_of(const QualityOptions& options, const Engine& engine) {
  return {.machine = read_machine(),
          .device = engine.device().name(),
          .model = engine.model_path(),
          .draft = spec_type_name(options.engine.draft.type),
          .draft_model = options.engine.draft.model,
          .prefill_type = prefill_type_name(engine.prefills_in_int8(), engine.dtype()),
          .dtype = engine.dtype(),
          .prompt_tokens = options.prompt_tokens,
          .seed = options.seed,
          .rows = {}};
}

ordered_json row_json(const DraftNeedleRow& row) {
  ordered_json out = ordered_json::object();
  if (!row.document.empty()) {
    out = {{"document", row.document}, {"depth", to_decimals(row.depth, 4)}, {"number", row.number}};
  }
  out["prompt_tokens"] = row.prompt_tokens;
  out["tokens"] = row.tokens;
  out["first"] = row.first;
  out["target_first"] = row.target_first;
  out["absent"] = row.absent;
  out["nats"] = to_decimals(row.nats_sum, 4);
  // null: no token has a log-probability, or it is beyond what a double holds
  const double perplexity = row.perplexity();
  out["perplexity"] = perplexity > 0 && std::isfinite(perplexity) ? ordered_json(to_decimals(perplexity, 4)) : nullptr;
  return out;
}

}  // namespace

double DraftNeedleRow::perplexity() const {
  return tokens > absent ? std::exp(nats_sum / static_cast<double>(tokens - absent)) : 0;
}

void DraftNeedleRow::add(const DraftNeedleRow& more) {
  prompt_tokens += more.prompt_tokens;
  tokens += more.tokens;
  first += more.first;
  target_first += more.target_first;
  absent += more.absent;
  nats_sum += more.nats_sum;
}

DraftNeedleRow DraftNeedleReport::all() const {
  DraftNeedleRow sum;
  for (const DraftNeedleRow& row : rows) sum.add(row);
  return sum;
}

DraftNeedleReport run_draft_needle(const QualityOptions& options, const DraftNeedleHooks& hooks) {
  const HostClock::time_point start = HostClock::now();
  const ReadOptions reading{.limit = {}, .interrupt = options.interrupt};
  std::vector<std::pair<std::string, std::string>> documents;  // name and text
  for (const std::string& file : expand_documents(options.documents, options.outputs)) {
    documents.emplace_back(file == "-" ? "standard input" : file, read_document(file, reading));
  }
  Engine engine(options.engine);
  if (hooks.on_engine) hooks.on_engine(engine);
  check_prompt_tokens(engine, options.prompt_tokens, kNeedleSlack);
  DraftNeedleReport report = beginning_of(options, engine);
  const size_t depths = std::size(kNeedleDepths), runs = documents.size() * depths;
  for (size_t i = 0; i < runs; ++i) {
    const auto& [file, text] = documents[i / depths];
    DraftNeedleRow row{.document = file, .depth = kNeedleDepths[i % depths], .number = needle_number(options.seed, i)};
    if (hooks.on_begin) hooks.on_begin(str("[", i + 1, "/", runs, "] ", file, ", a number at ", row.depth * 100, "%"));
    const std::string sentence = needle_sentence(row.number);
    // Reserves room for the sentence, and for the answer.
    const std::string cut =
        cut_document(engine, file, text, str(sentence, " ", kNeedleQuestion, " ", sentence), options.prompt_tokens);
    const HiddenNumber hidden = ask_for(engine, with_needle(cut, row.depth, sentence), row.number);
    const GenerateResult result = follow(options, hidden, engine, hooks.progress);
    report.interrupted = result.finish_reason == FinishReason::kInterrupted;
    if (report.interrupted) break;
    report.window = result.draft_window;
    row.prompt_tokens = result.prompt_tokens;
    count(result.forced, &row);
    report.rows.push_back(std::move(row));
    if (hooks.on_row) hooks.on_row(report);
  }
  report.seconds = seconds_since(start);
  return report;
}

std::string draft_needle_json(const DraftNeedleReport& report) {
  ordered_json out = {{"program", "headrace bench quality"},
                      {"measures", "draft needle"},
                      {"machine", machine_json(report.machine, report.device)},
                      {"model", report.model},
                      {"dtype", dtype_name(report.dtype)},
                      {"prefill_type", report.prefill_type},
                      {"draft", report.draft},
                      {"draft_model", report.draft_model},
                      {"draft_window", report.window.rows},
                      {"prompt_tokens", report.prompt_tokens},
                      {"seed", report.seed},
                      {"seconds", to_decimals(report.seconds, 3)}};
  if (const RetrievalShape& chosen = report.window.retrieval; chosen.chunks > 0) {
    out["draft_cache"] = {{"chunks", chosen.chunks}, {"rows", chosen.rows}, {"every", chosen.every}};
  }
  out["rows"] = list_json(report.rows, [](const auto& row) { return row_json(row); });
  if (!report.rows.empty()) out["all_documents"] = row_json(report.all());
  out["interrupted"] = report.interrupted;
  return report_text(out);
}

}  // namespace headrace
