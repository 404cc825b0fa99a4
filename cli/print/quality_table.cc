#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/print/format.h"
#include "cli/print/tables.h"

namespace headrace {
namespace {

constexpr int kRowWidths[] = {6, 8, 9, 9, 9, 12, 9, 10, 10, 12};
constexpr const char* kRowNames[] = {"T",   "reads",   "interval", "judged",  "overturned",
                                     "tau", "refresh", "tokens",   "ROUGE-L", "the same"};
constexpr int kNeedleWidths[] = {6, 8, 9, 9, 9};
constexpr const char* kNeedleNames[] = {"T", "depth", "reads", "found", "tau"};
constexpr int kDraftNeedleWidths[] = {6, 8, 8, 12, 8};
// "first" and "target": of the tokens, those that the draft ranks first and that the target would have sampled.
constexpr const char* kDraftNeedleNames[] = {"depth", "tokens", "first", "perplexity", "target"};
constexpr int kPerplexityWidths[] = {10, 12, 14};
constexpr const char* kPerplexityNames[] = {"predicted", "nats", "perplexity"};

std::string fixed(double value, int digits, const char* unit = "") {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f%s", digits, value, unit);
  return text;
}

std::string short_name(const std::string& document) {
  return document.empty() ? "all documents" : std::filesystem::path(document).filename().string();
}

// "int8", or the tokens of blocks.
std::string reading_text(const PartialReading& reading) {
  return reading.budget > 0 ? format_count(reading.budget) : partial_kind_name(reading.kind);
}

std::string interval_text(int64_t interval) { return interval == kAutoInterval ? "auto" : format_count(interval); }

}  // namespace

std::string quality_heading(const QualityReport& report) {
  const std::vector<std::string> names(std::begin(kRowNames), std::end(kRowNames));
  return str(report.model, ", ", dtype_name(report.dtype), ", on ", report.device, "; draft: ", report.draft, "\n",
             machine_text(report.machine), "\n", columns(names, kRowWidths), "  document\n");
}

// tau is that of the lossless run's partial steps; judged and rejected tokens are those of its refreshes.
std::string quality_line(const QualityRow& row) {
  std::vector<std::string> texts = {fixed(static_cast<double>(row.temperature), 1), reading_text(row.reading),
                                    interval_text(row.interval)};
  if (!row.compared()) {
    const char* const why =
        row.holds_all ? "  the partial KV holds all of " : "  no partial step: the text is too short, of ";
    return str(columns(texts, kRowWidths), why, short_name(row.document), "\n");
  }
  const VerifyOutcome& judged = row.lossless.verify_outcome;
  texts.insert(texts.end(), {format_count(judged.judged), fixed(100 * judged.overturn_rate(), 1, "%"),
                             fixed(row.lossless.of(StepMode::kPartial).tau(), 2),
                             format_count(row.lossless.of(StepMode::kRefresh).steps), format_count(row.decode_tokens),
                             fixed(row.rouge_l(), 3), str(row.approximate_same, " of ", row.runs)});
  return str(columns(texts, kRowWidths), "  ", short_name(row.document), "\n");
}

std::string needle_heading() {
  const std::vector<std::string> names(std::begin(kNeedleNames), std::end(kNeedleNames));
  return str("\n", columns(names, kNeedleWidths), "  document: answer\n");
}

std::string needle_line(const NeedleRow& row) {
  std::string answer = row.answer;
  std::replace(answer.begin(), answer.end(), '\n', ' ');
  return str(columns({fixed(static_cast<double>(row.temperature), 1), fixed(100 * row.depth, 0, "%"),
                      row.reading ? reading_text(*row.reading) : "full", row.found ? "yes" : "no",
                      row.speculation.type.empty() ? "-" : fixed(row.speculation.tau(), 2)},
                     kNeedleWidths),
             "  ", short_name(row.document), ": ", answer, "\n");
}

std::string perplexity_heading(const PerplexityReport& report) {
  const std::vector<std::string> names(std::begin(kPerplexityNames), std::end(kPerplexityNames));
  return str(report.model, ", ", dtype_name(report.dtype), ", KV ", dtype_name(report.k_type), " and ",
             dtype_name(report.v_type), ", prompts read in ", report.prefill_type,
             report.against.empty() ? "" : ", against " + report.against, ", on ", report.device, "\n",
             machine_text(report.machine), "\n", columns(names, kPerplexityWidths), "  document\n");
}

std::string perplexity_line(const PerplexityRow& row) {
  return str(
      columns({format_count(row.predicted), fixed(row.nats(), 6), fixed(row.perplexity(), 4)}, kPerplexityWidths), "  ",
      short_name(row.document),
      row.against_nats_sum > 0 ? str("; against ", fixed(row.against().perplexity(), 4), ", KL ", fixed(row.kl(), 5),
                                     " nats, the same first token at ", fixed(100 * row.top1(), 1), "%")
                               : "",
      "\n");
}

std::string perplexity_summary(const PerplexityReport& report) {
  return report.rows.size() > 1 ? "\n" + perplexity_line(report.all()) : "";
}

std::string draft_needle_heading(const DraftNeedleReport& report) {
  const std::vector<std::string> names(std::begin(kDraftNeedleNames), std::end(kDraftNeedleNames));
  const int64_t window = report.window.rows;
  const RetrievalShape& chosen = report.window.retrieval;
  const std::string chunks =
      chosen.chunks > 0 ? str(" and ", chosen.chunks, " chunks of ", chosen.rows) : std::string();
  return str(report.model, ", ", dtype_name(report.dtype), ", on ", report.device, "; draft: ", report.draft, ", ",
             window > 0 ? str("window ", format_count(window), chunks) : "all tokens", "\n",
             machine_text(report.machine), "\n", columns(names, kDraftNeedleWidths), "  document: number\n");
}

std::string draft_needle_line(const DraftNeedleRow& row) {
  const bool all = row.document.empty();
  return str(columns({all ? "all" : fixed(100 * row.depth, 0, "%"), format_count(row.tokens), format_count(row.first),
                      row.tokens > row.absent ? fixed(row.perplexity(), 3) : "-", format_count(row.target_first)},
                     kDraftNeedleWidths),
             all ? "" : str("  ", short_name(row.document), ": ", row.number), "\n");
}

std::string draft_needle_summary(const DraftNeedleReport& report) {
  const DraftNeedleRow all = report.all();
  std::string text = report.rows.empty() ? "" : "\n" + draft_needle_line(all);
  if (all.absent > 0) {
    text += str("the draft's vocabulary lacks ", all.absent, " of ", all.tokens,
                " tokens; they count as wrong, and not in the perplexity\n");
  }
  return text;
}

std::string quality_summary(const QualityReport& report) {
  std::string text;
  if (report.options.documents.size() > 1) {
    text += "\n";
    for (const QualityRow& row : report.means()) text += quality_line(row);
  }
  std::vector<std::optional<PartialReading>> readings = {std::nullopt};
  for (const PartialReading& reading : report.options.readings()) readings.emplace_back(reading);
  for (const std::optional<PartialReading>& reading : readings) {
    const auto here = [&](const NeedleRow& row) { return row.reading == reading; };
    const auto found = [&](const NeedleRow& row) { return here(row) && row.found; };
    const auto& all = report.needles;
    const auto asked = std::count_if(all.begin(), all.end(), here);
    if (asked == 0) continue;
    text += str(text.empty() || text.back() == '\n' ? "\n" : "; ", "sentences found, ",
                !reading ? "full KV" : str(reading_text(*reading), reading->budget > 0 ? " tokens" : ""), ": ",
                std::count_if(all.begin(), all.end(), found), " of ", asked);
  }
  text += "\n";
  if (!report.lossless()) text += "error: a lossless run differed from plain decoding; this is a bug\n";
  return text;
}

}  // namespace headrace
