#include "runtime/commands/quality/quality.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "offload/host/clock.h"
#include "runtime/commands/quality/needle.h"
#include "runtime/commands/quality/rouge.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

constexpr int64_t kNeedleAnswer = 24;  // tokens

std::string reading_name(const PartialReading& reading) {
  const char* const kind = partial_kind_name(reading.kind);
  return reading.budget > 0 ? str(kind, " of ", reading.budget, " tokens") : kind;
}

class Quality {
 public:
  Quality(const QualityOptions& options, const QualityHooks& hooks) : options_(options), hooks_(hooks) {}
  QualityReport run();

 private:
  struct Document {
    std::string file, text;
  };
  void read_documents();
  void open();
  std::vector<int32_t> prompt(std::string_view text, std::string_view request) const {
    return document_prompt(*engine_, text, request);
  }
  std::string cut(const Document& document, std::string_view request) const {
    return cut_document(*engine_, document.file, document.text, request, options_.prompt_tokens);
  }
  GenerateResult generate(const std::vector<int32_t>& prompt, float temperature, int64_t tokens,
                          const VerifyOptions& verify, bool draft);
  VerifyOptions verify(VerifyMode mode, const PartialReading& reading, int64_t interval) const;
  void begin(const std::string& what);
  void compare(const Document& document);
  void compare_row(const std::vector<int32_t>& ids, const GenerateResult& full, QualityRow row);
  void hide(const Document& document, size_t index);
  bool look(const std::vector<int32_t>& ids, NeedleRow row);

  const QualityOptions& options_;
  const QualityHooks& hooks_;
  std::vector<Document> documents_;
  std::unique_ptr<Engine> engine_;
  QualityReport report_;
  size_t runs_ = 0, begun_ = 0;
};

// Before the model is opened, so that document errors are reported at once.
void Quality::read_documents() {
  const ReadOptions reading{.limit = {}, .interrupt = options_.interrupt};
  for (const std::string& file : expand_documents(options_.documents, options_.outputs)) {
    documents_.push_back({file == "-" ? "standard input" : file, read_document(file, reading)});
  }
  const size_t readings = options_.readings().size();
  const size_t texts = options_.temperatures.size() * (1 + 2 * readings * options_.intervals.size());
  runs_ = documents_.size() * (texts + std::size(kNeedleDepths) * (1 + readings));
}

void Quality::open() {
  engine_ = std::make_unique<Engine>(options_.engine);
  if (hooks_.on_engine) hooks_.on_engine(*engine_);
  check_prompt_tokens(*engine_, options_.prompt_tokens, std::max(options_.decode_tokens, kNeedleAnswer + kNeedleSlack));
  report_.machine = read_machine();
  report_.device = engine_->device().name();
  report_.model = engine_->model_path();
  report_.dtype = engine_->dtype();
  report_.prefill_type = prefill_type_name(engine_->prefills_in_int8(), report_.dtype);
  report_.draft = spec_type_name(engine_->draft_type());
  report_.options = options_;
}

QualityReport Quality::run() {
  const HostClock::time_point start = HostClock::now();
  read_documents();
  open();
  for (size_t i = 0; i < documents_.size() && !report_.interrupted; ++i) compare(documents_[i]);
  for (size_t i = 0; i < documents_.size() && !report_.interrupted; ++i) hide(documents_[i], i);
  report_.seconds = seconds_since(start);
  return std::move(report_);
}

// ---- runs -----------------------------------------------------------------------------------------------------------

void Quality::begin(const std::string& what) {
  if (hooks_.on_begin) hooks_.on_begin(str("[", ++begun_, "/", runs_, "] ", what));
}

VerifyOptions Quality::verify(VerifyMode mode, const PartialReading& reading, int64_t interval) const {
  VerifyOptions verify = options_.engine.verify;
  verify.mode = mode;
  verify.partial = reading.kind;
  if (reading.budget > 0) verify.budget = reading.budget;
  verify.interval = interval;
  return verify;
}

GenerateResult Quality::generate(const std::vector<int32_t>& prompt, float temperature, int64_t tokens,
                                 const VerifyOptions& verify, bool draft) {
  GenerateOptions run;
  run.max_tokens = tokens;
  run.sampling.temperature = temperature;
  run.sampling.seed = options_.seed;
  run.ignore_eos = options_.ignore_eos;
  run.speculate = draft;
  run.verify = verify;
  run.interrupt = options_.interrupt;
  GenerateResult result = engine_->generate(prompt, run, hooks_.progress);
  if (result.finish_reason == FinishReason::kInterrupted) report_.interrupted = true;
  return result;
}

// ---- rejected tokens, and similarity of texts ---------------------------------------------------------------------

void Quality::compare(const Document& document) {
  const std::vector<int32_t> ids = prompt(cut(document, options_.instruction), options_.instruction);
  for (const float temperature : options_.temperatures) {
    begin(str(document.file, ", T ", temperature, ", full"));
    const GenerateResult full = generate(ids, temperature, options_.decode_tokens, {.mode = VerifyMode::kFull}, false);
    for (const PartialReading& reading : options_.readings()) {
      for (const int64_t interval : options_.intervals) {
        if (report_.interrupted) return;
        QualityRow row;
        row.document = document.file;
        row.temperature = temperature;
        row.reading = reading;
        row.interval = interval;
        compare_row(ids, full, std::move(row));
      }
    }
  }
}

void Quality::compare_row(const std::vector<int32_t>& ids, const GenerateResult& full, QualityRow row) {
  GenerateResult results[2];
  const VerifyMode modes[] = {VerifyMode::kLossless, VerifyMode::kApproximate};
  for (size_t i = 0; i < 2; ++i) {
    begin(
        str(row.document, ", T ", row.temperature, ", ", reading_name(row.reading), ", ", verify_mode_name(modes[i])));
    results[i] =
        generate(ids, row.temperature, options_.decode_tokens, verify(modes[i], row.reading, row.interval), true);
    if (report_.interrupted) return;
  }
  row.runs = 1;
  row.prompt_tokens = full.prompt_tokens;
  row.decode_tokens = static_cast<int64_t>(full.token_ids.size());
  row.holds_all = results[0].plan.partial_bytes == 0;
  row.lossless = results[0].speculation;
  row.approximate = results[1].speculation;
  row.lossless_same = same_answer(results[0], full) ? 1 : 0;
  row.approximate_same = same_answer(results[1], full) ? 1 : 0;
  row.rouge_l_sum = headrace::rouge_l(results[1].token_ids, full.token_ids);
  report_.rows.push_back(std::move(row));
  if (hooks_.on_row) hooks_.on_row(report_);
}

// ---- needles --------------------------------------------------------------------------------------------------------

void Quality::hide(const Document& document, size_t index) {
  for (size_t i = 0; i < std::size(kNeedleDepths); ++i) {
    NeedleRow row;
    row.document = document.file;
    row.depth = kNeedleDepths[i];
    row.temperature = options_.temperatures.front();
    row.number = needle_number(options_.seed, index * std::size(kNeedleDepths) + i);
    const std::string sentence = needle_sentence(row.number);
    // Reserves room for the sentence.
    const std::string text = cut(document, str(sentence, " ", kNeedleQuestion));
    const std::vector<int32_t> ids = prompt(with_needle(text, row.depth, sentence), kNeedleQuestion);
    if (!look(ids, row)) return;
    for (const PartialReading& reading : options_.readings()) {
      row.reading = reading;
      row.interval = options_.intervals.front();
      if (!look(ids, row)) return;
    }
  }
}

bool Quality::look(const std::vector<int32_t>& ids, NeedleRow row) {
  const std::string how = row.reading ? reading_name(*row.reading) : "full";
  begin(str(row.document, ", a sentence at ", row.depth * 100, "%, ", how));
  VerifyOptions how_verified{.mode = VerifyMode::kFull};
  if (row.reading) how_verified = verify(VerifyMode::kApproximate, *row.reading, row.interval);
  const GenerateResult result = generate(ids, row.temperature, kNeedleAnswer, how_verified, true);
  if (report_.interrupted) return false;
  row.prompt_tokens = result.prompt_tokens;
  row.found = has_number(result.text, row.number);
  row.answer = result.text;
  row.speculation = result.speculation;
  report_.needles.push_back(std::move(row));
  if (hooks_.on_needle) hooks_.on_needle(report_);
  return true;
}

}  // namespace

std::vector<PartialReading> QualityOptions::readings() const {
  std::vector<PartialReading> all;
  for (const PartialKind kind : partial) {
    CHECK(kind != PartialKind::kAuto);
    if (kind != PartialKind::kBlocks) all.push_back({kind});
    if (kind == PartialKind::kBlocks) {
      for (const int64_t budget : budgets) all.push_back({kind, budget});
    }
  }
  return all;
}

void QualityRow::add(const QualityRow& more) {
  runs += more.runs;
  prompt_tokens += more.prompt_tokens;
  decode_tokens += more.decode_tokens;
  lossless.add(more.lossless);
  approximate.add(more.approximate);
  lossless_same += more.lossless_same;
  approximate_same += more.approximate_same;
  rouge_l_sum += more.rouge_l_sum;
  holds_all = more.holds_all;
}

std::vector<QualityRow> QualityReport::means() const {
  std::vector<QualityRow> sums;
  for (const QualityRow& row : rows) {
    const auto same = [&](const QualityRow& sum) {
      return sum.temperature == row.temperature && sum.reading == row.reading && sum.interval == row.interval;
    };
    auto at = std::find_if(sums.begin(), sums.end(), same);
    if (at == sums.end()) {
      at = sums.insert(at, QualityRow());
      at->temperature = row.temperature;
      at->reading = row.reading;
      at->interval = row.interval;
    }
    at->add(row);
  }
  return sums;
}

bool QualityReport::lossless() const {
  return std::all_of(rows.begin(), rows.end(), [](const QualityRow& row) { return row.lossless_same == row.runs; });
}

QualityReport run_quality(const QualityOptions& options, const QualityHooks& hooks) {
  return Quality(options, hooks).run();
}

}  // namespace headrace
