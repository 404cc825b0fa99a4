#include "cache/minimum_budgets.h"

#include <algorithm>
#include <vector>

namespace headrace {
namespace {

constexpr uint64_t kEndless = uint64_t{1} << 50;

enum class Budget : uint8_t { kVram, kHost, kDisk };

bool one_memory(const PlanInput& in) { return in.total_free != UINT64_MAX; }

uint64_t vram_free(const PlanInput& in) { return std::min(in.vram_free, in.total_free); }
uint64_t host_free(const PlanInput& in) { return std::min(in.host_free, in.total_free); }
uint64_t free_of(const PlanInput& in, Budget budget) {
  return budget == Budget::kVram ? vram_free(in) : budget == Budget::kHost ? host_free(in) : in.disk_free;
}

// With one memory for both tiers, more for the host is more for both, unless the device's share has its own limit.
PlanInput with_free(PlanInput in, Budget budget, uint64_t bytes) {
  if (budget == Budget::kVram) {
    in.vram_free = bytes;
    in.vram_most = std::max(in.vram_most, bytes);
  }
  if (budget == Budget::kDisk) in.disk_free = bytes;
  if (budget == Budget::kHost) {
    if (one_memory(in)) {
      if (in.vram_free >= in.total_free) in.vram_free = std::min(bytes, in.vram_most);
      in.total_free = bytes;
    }
    in.host_free = bytes;
  }
  return in;
}

uint64_t taken_of(const PlanInput& in, const MemoryPlan& plan, Budget budget) {
  if (budget == Budget::kDisk) return plan.disk_bytes;
  if (budget == Budget::kVram) return plan.all_vram_bytes();
  return plan.host_total_bytes + (one_memory(in) ? plan.all_vram_bytes() : 0);
}

// The smallest value of this budget that fits; 0: none does. What a plan uses of an unlimited budget is enough.
uint64_t least(const PlanInput& in, Budget budget) {
  const std::optional<MemoryPlan> roomy = try_plan(with_free(in, budget, kEndless));
  if (!roomy) return 0;
  uint64_t low = free_of(in, budget) / kPageBytes;
  uint64_t high = std::max(low + 1, whole_pages(taken_of(in, *roomy, budget)) / kPageBytes);
  while (low + 1 < high) {
    const uint64_t middle = low + (high - low) / 2;
    (try_plan(with_free(in, budget, middle * kPageBytes)) ? high : low) = middle;
  }
  return high * kPageBytes;
}

WorkBytes shrunk(WorkBytes work, int64_t context_rows, int64_t prompt_rows) {
  const uint64_t less = static_cast<uint64_t>(context_rows) * work.per_context_row +
                        static_cast<uint64_t>(prompt_rows) * work.per_prompt_row;
  work.bytes -= std::min(work.bytes, less);
  return work;
}

// The same run with a shorter context: the prompt shrinks, then the answer.
PlanInput with_context(PlanInput in, int64_t context) {
  const int64_t output = in.context_rows - in.prompt_rows, prompt = std::max<int64_t>(1, context - output);
  for (WorkBytes* work : {&in.prefill_work, &in.decode_work, &in.host_states}) {
    *work = shrunk(*work, in.context_rows - context, in.prompt_rows - prompt);
  }
  in.prompt_rows = prompt;
  in.context_rows = context;
  return in;
}

int64_t largest_context(const PlanInput& in) {
  int64_t low = 0, high = in.context_rows;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (try_plan(with_context(in, middle)) ? low : high) = middle;
  }
  return low;
}

// Like format_bytes, but rounded up: a budget set to this value is enough.
std::string at_least(uint64_t bytes) {
  uint64_t unit = 1;
  while (bytes / unit >= 1024 && unit < (uint64_t{1} << 40)) unit *= 1024;
  const uint64_t hundredths = bytes % unit * 100;
  return format_bytes(bytes / unit * unit + (hundredths + unit - 1) / unit * unit / 100);
}
// Rounded down.
std::string at_most(uint64_t bytes) {
  uint64_t unit = 1;
  while (bytes / unit >= 1024 && unit < (uint64_t{1} << 40)) unit *= 1024;
  return format_bytes(bytes / unit * unit + (bytes % unit * 100 / unit * unit + 99) / 100);
}

// The budget that the error names: the one the planner tried last; host memory before device memory, because a card's
// memory cannot be raised.
Budget named(const PlanInput& in, const MinimumBudgets& minimum) {
  if (in.disk_free > 0 && minimum.disk_bytes > 0) return Budget::kDisk;
  return minimum.host_bytes > 0 ? Budget::kHost : Budget::kVram;
}

const char* flag_of(Budget budget) {
  return budget == Budget::kVram ? "--vram" : budget == Budget::kHost ? "--host-mem" : "--spill";
}

uint64_t need_of(const MinimumBudgets& minimum, Budget budget) {
  if (budget == Budget::kDisk) return minimum.disk_bytes;
  if (budget == Budget::kHost) return minimum.host_bytes;
  return minimum.vram_bytes > 0 ? minimum.vram_bytes : minimum.both_vram_bytes;
}

std::string raise(const PlanInput& in, Budget budget, uint64_t bytes) {
  return str("raise ", flag_of(budget), " by ", at_least(bytes - free_of(in, budget)));
}

bool fits_as_int8(PlanInput in) {
  in.rows.k_type = in.rows.v_type = DType::kInt8;
  in.rows.values_alone = false;
  return try_plan(in).has_value();
}

bool fits_without_substitutes(PlanInput in) {
  in.weights.substitutes.clear();
  in.partial = {};
  return try_plan(in).has_value();
}

std::vector<std::string> ways(const PlanInput& in, const MinimumBudgets& minimum) {
  std::vector<std::string> all;
  if (in.disk_free > 0 && minimum.disk_bytes > 0) all.push_back(str("raise --spill to ", at_least(minimum.disk_bytes)));
  if (minimum.host_bytes > 0) all.push_back(raise(in, Budget::kHost, minimum.host_bytes));
  if (minimum.vram_bytes > 0) all.push_back(raise(in, Budget::kVram, minimum.vram_bytes));
  if (minimum.both_vram_bytes > 0) {
    all.push_back(raise(in, Budget::kVram, minimum.both_vram_bytes));
    if (minimum.both_host_bytes > host_free(in)) {
      all.back() += str(" and --host-mem by ", at_least(minimum.both_host_bytes - host_free(in)));
    }
  }
  if (in.disk_free == 0 && minimum.disk_bytes > 0) {
    all.push_back(str("spill ", at_least(minimum.disk_bytes), " of the KV cache to a disk (--spill DIR)"));
  }
  if (!in.weights.substitutes.empty() && fits_without_substitutes(in)) {
    all.emplace_back("do without substitutes (--weights-substitute none)");
  }
  if (in.partial.on() && !in.partial.exact && named(in, minimum) == Budget::kVram) {
    all.emplace_back(in.partial.copy ? "use --verify full" : "use a smaller --partial-budget or --verify full");
  }
  if (in.mode == KvMode::kDevice) all.emplace_back("allow KV rows off the device (--kv auto)");
  if (fits_as_int8(in)) all.emplace_back("store the KV cache in 8 bits (-ctk int8 -ctv int8)");
  return all;
}

ErrorInfo refusal(const PlanInput& in, const MinimumBudgets& minimum) {
  const Budget budget = named(in, minimum);
  std::string hint = minimum.context_rows > 0 ? str("A context of ", minimum.context_rows,
                                                    " tokens would fit (-c, -n or --truncate middle); or ")
                                              : std::string("No context fits; ");
  const char* between = "";
  for (const std::string& way : ways(in, minimum)) {
    hint += between + way;
    between = ", or ";
  }
  return {.code = ExitCode::kDoesNotFit,
          .where = flag_of(budget),
          .what = str("needs ", at_least(need_of(minimum, budget)), " for ",
                      in.weights.bytes.empty() ? "" : "the layers' weights and ", "a context of ", in.context_rows,
                      " tokens, ", at_most(free_of(in, budget)), " are free"),
          .hint = hint + "."};
}

ErrorInfo refusal_of_copy(const DoesNotFit& refused, PartialKind instead) {
  const PlanInput& in = refused.input();
  ErrorInfo info = refused.info();
  info.what = str("the copy of ", in.context_rows, " rows in ", dtype_name(in.partial.copy.value()), " takes ",
                  format_bytes(in.partial.bytes(in.rows, in.context_rows)), ": ", info.where, " ", info.what);
  info.where = "--partial-kv";
  info.hint = str("--partial-kv ", partial_kind_name(instead), " would fit. ", info.hint);
  return info;
}

}  // namespace

MinimumBudgets minimum_budgets(const PlanInput& input) {
  MinimumBudgets minimum{.context_rows = largest_context(input),
                         .vram_bytes = least(input, Budget::kVram),
                         .host_bytes = least(input, Budget::kHost),
                         .disk_bytes = input.mode == KvMode::kDevice ? 0 : least(input, Budget::kDisk)};
  if (minimum.vram_bytes > 0 || minimum.host_bytes > 0 || minimum.disk_bytes > 0) return minimum;
  minimum.both_vram_bytes = least(with_free(input, Budget::kHost, kEndless), Budget::kVram);
  minimum.both_host_bytes = least(with_free(input, Budget::kVram, minimum.both_vram_bytes), Budget::kHost);
  return minimum;
}

MinimumBudgets least_of(const MinimumBudgets& a, const MinimumBudgets& b) {
  const auto least = [](uint64_t x, uint64_t y) { return x == 0 || y == 0 ? std::max(x, y) : std::min(x, y); };
  MinimumBudgets of{.context_rows = std::max(a.context_rows, b.context_rows),
                    .vram_bytes = least(a.vram_bytes, b.vram_bytes),
                    .host_bytes = least(a.host_bytes, b.host_bytes),
                    .disk_bytes = least(a.disk_bytes, b.disk_bytes)};
  if (of.vram_bytes > 0 || of.host_bytes > 0 || of.disk_bytes > 0) return of;
  const bool second = a.both_vram_bytes == 0 || (b.both_vram_bytes > 0 && b.both_vram_bytes < a.both_vram_bytes);
  of.both_vram_bytes = second ? b.both_vram_bytes : a.both_vram_bytes;
  of.both_host_bytes = second ? b.both_host_bytes : a.both_host_bytes;
  return of;
}

DoesNotFit::DoesNotFit(const PlanInput& input, const MinimumBudgets& minimum)
    : Error(refusal(input, minimum)), input_(input), minimum_(minimum) {}

DoesNotFit::DoesNotFit(const DoesNotFit& refused, PartialKind instead)
    : Error(refusal_of_copy(refused, instead)), input_(refused.input_), minimum_(refused.minimum_), instead_(instead) {}

}  // namespace headrace
