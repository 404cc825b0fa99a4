#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/print/format.h"
#include "cli/print/tables.h"
#include "runtime/commands/report.h"

namespace headrace {
namespace {

// On the CPU device and host are the same memory.
const char* where(const PlanReport& report, Tier tier) {
  if (tier == Tier::kDisk) return "disk";
  return report.one_memory ? "memory" : tier == Tier::kVram ? "device" : "host";
}

std::string line(const char* place, uint64_t bytes, const std::string& what) {
  return bytes == 0 ? "" : str("  ", filled(place, 8), padded(format_bytes(bytes), 12), "  ", what, "\n");
}

std::string weights_label(const RunPlan& run) {
  const std::string types = weights_text(run.weight_types);
  const bool some_left = run.memory.host_weights_bytes + run.memory.host_embedding_bytes > 0;
  if (!some_left) return types.empty() ? "weights" : "weights: " + types;
  return types.empty() ? "weights that stay" : str("weights that stay (all: ", types, ")");
}

std::string memory_table(const PlanReport& report) {
  const RunPlan& run = *report.run;
  const char* const device = where(report, Tier::kVram);
  std::string text = line(device, report.taken_bytes, "CUDA itself") +
                     line(device, run.weights_bytes, weights_label(run)) +
                     line(device, run.draft_weights_bytes, "weights of the draft") +
                     line(where(report, Tier::kHost), run.table_bytes, kTokenTable);
  for (const PlanLine& l : run.memory.lines) {
    const bool phase = l.what.starts_with("prefill:") || l.what.starts_with("decode:");
    text += line(where(report, l.tier), l.bytes, l.what + (phase ? ", one after the other" : ""));
  }
  const uint64_t host_bytes = report.host_bytes();
  if (!report.one_memory) {
    text += line(device, report.device_bytes(), "at the peak of " + format_bytes(report.vram_limit_bytes));
  }
  text += line(where(report, Tier::kHost), report.one_memory ? report.device_bytes() + host_bytes : host_bytes,
               "at the peak of " + format_bytes(report.host_limit_bytes));
  const std::string window = format_draft_window(run.draft_window);
  if (!window.empty()) text += "  " + window + "\n";
  return text;
}

std::string milliseconds(double ms) { return ms < 1000 ? format_rate(ms) + " ms" : format_duration(ms / 1e3); }

// On the CPU a link is copies within memory, and the device the processor.
std::string bound(const PassCost& cost, bool one_memory) {
  const std::string part = cost.bound();
  if (!one_memory || part == "disk") return part;
  return part == "link" ? "copies" : "processor";
}

std::string pass_line(const char* name, const PassCost& cost, const char* direction, bool one_memory) {
  std::string text = str("  ", filled(name, 9));
  text += padded(
      cost.link_bytes > 0 ? str(format_bytes(cost.link_bytes), one_memory ? "" : direction) : std::string("nothing"),
      23);
  text += padded(format_bytes(cost.weight_bytes), 12) + padded(format_bytes(cost.kv_bytes), 12);
  if (!cost.known) return text + padded("not known", 11) + "\n";
  text += padded(milliseconds(cost.ms()), 11);
  text += padded(bound(cost, one_memory), 10);
  return text + "\n";
}

std::string pass_table(const PlanReport& report) {
  const Prediction& p = *report.predicted;
  std::string text = str("  ", filled("pass", 9), padded("moves", 23), padded("weights", 12), padded("rows", 12),
                         padded("takes", 11), padded("bound by", 10), "\n");
  text += pass_line("prefill", p.prefill, " to host", report.one_memory);
  const bool partial = p.has_partial;
  if (!partial) text += pass_line("step", p.full, " to device", report.one_memory);
  if (partial) text += pass_line("partial", p.partial, " to device", report.one_memory);
  if (partial) text += pass_line("refresh", p.refresh, " to device", report.one_memory);
  const MemoryPlan& memory = report.run->memory;
  if (memory.host_experts_alone) {
    text += str("  of each step ", format_bytes((partial ? p.partial : p.full).streamed_weight_bytes),
                " are experts, if a slab of ", memory.expert_slots, " of ", report.run->sizes.experts.count, " has ",
                format_percent(expert_hit_rate(memory.expert_slots, report.run->sizes.experts.count)),
                " of them; a prompt takes ", format_bytes(p.prefill.streamed_weight_bytes), "\n");
  } else if (p.prefill.streamed_weight_bytes > 0) {
    text += str("  of each ", memory.substitutes() ? "refresh" : "step", ", and beside a prefill's, ",
                format_bytes(p.prefill.streamed_weight_bytes), " are weights to the device\n");
  }
  const PassCost& whole = partial ? p.refresh : p.full;
  if (whole.state_bytes > 0)
    text += str("  each step also reads and writes ", format_bytes(whole.state_bytes), " of recurrent states\n");
  if (whole.disk_bytes > 0) {
    text += str("  of which ", format_bytes(whole.disk_bytes), " from disk, ",
                whole.known ? milliseconds(whole.disk_ms) : std::string("whose rate is unknown"), "\n");
  }
  return text;
}

// The profile's age and spread; empty for data-sheet rates.
std::string profile_line(const PlanReport& report) {
  if (report.measured.empty()) return "";
  const std::string age = report.age_s ? format_age(*report.age_s) + " old" : "of an unknown age";
  const std::optional<RateSpread> worst = widest(report.spread);
  if (!worst) return str("  the profile is ", age, "; the spread of its rounds is unknown\n");
  return str("  the profile is ", age, "; its rounds differ by at most ", format_percent(worst->share), " (",
             rate_title(*worst->rate, !report.one_memory), ")",
             worst->share > kSteady ? ": the machine was busy. Measure again while it is idle: headrace profile" : "",
             "\n");
}

std::string speed(const PlanReport& report) {
  const Prediction& p = *report.predicted;
  std::string text;
  if (p.prefill.known) {
    const double prefill = static_cast<double>(report.run->prompt_tokens) / p.prefill.ms() * 1e3;
    text += str("first token after ", milliseconds(p.prefill.ms()), " (", format_rate(prefill), " tokens/s), ");
  }
  if (p.draft_ms > 0) text += str("a tree in ", milliseconds(p.draft_ms), ", ");
  const PassCost& pass = p.has_partial ? p.partial : p.full;
  if (pass.known) {
    const bool plain = report.run->draft.empty() && !p.has_partial;
    text += str("then ", format_rate(1e3 / (pass.ms() + p.draft_ms)),
                plain           ? " tokens/s"
                : p.has_partial ? " partial steps/s and refreshes between them"
                                : " steps/s",
                ", ");
  }
  if (!text.empty())
    text = str("  ", text.substr(0, text.size() - 2), "\n  by ", report.rates_from, "\n",
               report.assumed.empty() ? "" : "  assumed: " + report.assumed + "\n", profile_line(report));
  if (p.estimate) {
    text += str("  about ", format_rate(p.estimate->tokens_per_s), " tokens/s if refreshes overturn ",
                format_rate(100 * p.estimate->rejected_share), "% of the pending tokens",
                p.estimate->tau > 0 ? str(" and a step accepts ", format_rate(p.estimate->tau), " of the draft's") : "",
                ", an estimate: each refresh then confirms ", format_rate(p.estimate->tokens), " tokens\n");
  }
  if (p.known()) return text;
  return text + "  times that depend on the disk are unknown (headrace profile --disk DIR measures it)\n";
}

std::string mib(uint64_t bytes) { return str((bytes + kMiB - 1) / kMiB, "MiB"); }

// "    --vram 33434MiB --kv device, on another card: this one has 23.52 GiB"
std::string vram_remedy(const PlanReport& report, uint64_t vram, uint64_t host, const char* rest) {
  const uint64_t card = report.advice.card_vram_bytes;
  return str("    --vram ", mib(vram), host > report.host_limit_bytes ? " --host-mem " + mib(host) : "", rest,
             card > 0 && vram > card ? str(", on another card: this one has ", format_bytes(card)) : "", "\n");
}

std::string refusal(const PlanReport& report) {
  const PlanAdvice& a = report.advice;
  std::string text = "  what would fit:\n";
  if (a.context_tokens > 0) {
    text += str("    -c ", a.context_tokens, " in these budgets (", format_count(a.context_tokens), " tokens)\n");
  }
  if (a.kv_auto) text += "    --kv auto in these budgets\n";
  if (a.partial_kv) text += str("    --partial-kv ", partial_kind_name(*a.partial_kv), " in these budgets\n");
  if (a.host_bytes > 0) text += str("    --host-mem ", mib(a.host_bytes), "\n");
  if (a.spill_bytes > 0) text += str("    --spill DIR:", mib(a.spill_bytes), "\n");
  if (a.vram_bytes > 0) text += vram_remedy(report, a.vram_bytes, 0, "");
  if (report.one_memory) return text;
  if (a.host_bytes == 0 && a.spill_bytes == 0 && a.vram_bytes == 0 && a.host_vram_bytes > 0) {
    text += vram_remedy(report, a.host_vram_bytes, a.host_host_bytes, " --kv host");
  }
  if (a.device_vram_bytes > a.vram_bytes) {
    text += vram_remedy(report, a.device_vram_bytes, a.device_host_bytes, " --kv device, with all of it on the device");
  }
  return text;
}

constexpr int kBar = 30;

// "  device  [#########.....................]  7.12 GiB of 23.02 GiB"
std::string bar_line(const char* tier, uint64_t bytes, uint64_t limit) {
  const double share = limit > 0 ? std::min(1.0, static_cast<double>(bytes) / static_cast<double>(limit)) : 1.0;
  const auto full = static_cast<size_t>(std::lround(share * kBar));
  return str("  ", filled(tier, 8), "[", std::string(full, '#'), std::string(kBar - full, '.'), "] ",
             format_bytes(bytes), " of ", format_bytes(limit), "\n");
}

std::string tier_bars(const PlanReport& report) {
  const MemoryPlan& memory = report.run->memory;
  if (report.one_memory) {
    return bar_line("memory", report.device_bytes() + report.host_bytes(), report.host_limit_bytes);
  }
  std::string text = bar_line("device", report.device_bytes(), report.vram_limit_bytes) +
                     bar_line("host", report.host_bytes(), report.host_limit_bytes);
  if (memory.disk_bytes > 0) text += str("  ", filled("disk", 8), format_bytes(memory.disk_bytes), "\n");
  return text;
}

// "  leaves the device: 16.00 GiB of rows, 1.14 GiB of weights (5 of 64 layers)
//   crosses the link: 1.14 GiB in a partial step (48.5 ms), 17.01 GiB in a refresh (660 ms)"
std::string link_lines(const PlanReport& report) {
  const MemoryPlan& memory = report.run->memory;
  if (report.one_memory || !memory.streams()) return "";
  const uint64_t rows = memory.host_bytes + memory.disk_bytes;
  std::string text = "  leaves the device: ";
  if (rows > 0) text += format_bytes(rows) + " of rows";
  if (memory.streams_weights()) {
    text +=
        str(rows > 0 ? ", " : "", format_bytes(memory.host_weights_bytes), " of weights (",
            memory.host_experts_alone ? "experts of " : "", memory.host_weights_layers, " of ",
            report.run->sizes.layers, " layers", memory.substitutes() ? ", with substitutes on the device" : "", ")");
  }
  text += "\n";
  if (!report.predicted || !report.predicted->known()) return text;
  const auto pass = [](const PassCost& cost, const char* name) {
    return str(cost.link_bytes > 0 ? format_bytes(cost.link_bytes) : "nothing", " in a ", name, " (",
               milliseconds(cost.ms()), ")");
  };
  const Prediction& p = *report.predicted;
  return text + "  crosses the link: " +
         (p.has_partial ? str(pass(p.partial, "partial step"), ", ", pass(p.refresh, "refresh"))
                        : pass(p.full, "step")) +
         "\n";
}

std::string tokens_rate(const std::optional<double>& tokens_per_s, bool at_least) {
  return tokens_per_s ? str(at_least ? "at least " : "", format_rate(*tokens_per_s)) : std::string("unknown");
}

// "  fits: first token after 15.8 s, then about 36.4 tokens/s, by the data sheet of NVIDIA GeForce RTX 4090"
std::string answer(const PlanReport& report) {
  if (!report.run) return "  does not fit: " + report.refusal + "\n";
  if (!report.predicted) return "  fits; no times: this device has not been measured (run headrace profile)\n";
  const Prediction& p = *report.predicted;
  std::string text;
  if (p.prefill.known) text += str("first token after ", milliseconds(p.prefill.ms()), ", then ");
  if (p.tokens_per_s) text += str(p.at_least ? "" : "about ", tokens_rate(p.tokens_per_s, p.at_least), " tokens/s, ");
  if (text.empty())
    return "  fits; times that depend on the disk are unknown (headrace profile --disk DIR measures it)\n";
  if (!p.tokens_per_s) text += "tokens at an unknown rate, ";
  return str("  fits: ", text, "by ", report.rates_from, "\n");
}

// Times where one of them is known.
std::string settings_table(const PlanReport& report) {
  const auto timed = [](const PlanSetting& s) { return s.first_token_ms || s.tokens_per_s; };
  const bool times = std::any_of(report.settings.begin(), report.settings.end(), timed);
  const auto row = [&](const std::string& weights, const std::string& cache, const std::string& verify,
                       const std::string& first, const std::string& rate, const std::string& flags) {
    std::string text = "  " + filled(weights, 11) + filled(cache, 8) + filled(verify, 14);
    if (times) text += padded(first, 12) + padded(rate, 15);
    return text + (flags.empty() ? "" : "  " + flags) + "\n";
  };
  std::string text = row("weights", "cache", "verify", "first token", "tokens/s", "");
  for (const PlanSetting& s : report.settings) {
    const std::string first = !s.fits ? "" : s.first_token_ms ? milliseconds(*s.first_token_ms) : "unknown";
    text += row(s.weights, s.cache, s.fits ? s.verify : "does not fit", first,
                s.fits ? tokens_rate(s.tokens_per_s, s.at_least) : "", s.flags.empty() ? "as asked" : s.flags);
  }
  return text;
}

std::string context_line(const PlanReport& report) {
  if (report.context_tokens <= report.own_context_tokens) return "";
  return str("  the model was made for ", format_count(report.own_context_tokens), " tokens",
             report.card_rope.empty() ? "" : "; its card extends it: " + report.card_rope, "\n");
}

}  // namespace

std::string format_plan(const PlanReport& report) {
  std::string text = str(report.model, ", ", dtype_name(report.dtype), ", on ", report.device, "\n");
  text += answer(report);
  text += str("  ", format_count(report.context_tokens), " tokens: a prompt of ",
              format_count(report.context_tokens - report.output_tokens), " and ", format_count(report.output_tokens),
              " after it\n");
  text += context_line(report);
  if (report.run) text += tier_bars(report) + link_lines(report);
  text += "\n" + settings_table(report);
  return report.run ? text : text + "\n" + refusal(report);
}

std::string format_plan_details(const PlanReport& report) {
  if (!report.run) return "";
  const RunPlan& run = *report.run;
  std::string text = str("\n  the prompt is read in ", run.prefill_type, "\n");
  if (!run.draft.empty()) text += "  draft: " + run.draft + "\n";
  text += str("  verify: ", verify_mode_name(run.verify), run.partial.on() ? str(", ", run.partial.name()) : "",
              run.substitute ? str(", substitutes in ", weight_type_info(*run.substitute).name) : "",
              *run.verify_note == '\0' ? "" : str(": ", run.verify_note), "\n");
  if (!run.memory_note.empty()) text += "  " + run.memory_note + "\n";
  text += "\n" + memory_table(report);
  if (report.predicted) text += "\n" + pass_table(report) + speed(report);
  return text;
}

}  // namespace headrace
