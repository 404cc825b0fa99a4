#include "runtime/commands/bench.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "runtime/base/random.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"

namespace headrace {
namespace {

constexpr uint64_t kLinkBuffer = 64 * kMiB, kLinkRound = 256 * kMiB;
constexpr int64_t kWarmUpSteps = 3;
constexpr int64_t kCudaGroup = 2048, kCpuWarmUp = 64;

int64_t longest_context(const BenchOptions& options) {
  const auto longest = std::max_element(options.prompt_tokens.begin(), options.prompt_tokens.end());
  return *longest + options.decode_tokens + 1;
}

// Random weights have no trained context length, so a shape accepts any.
std::unique_ptr<Checkpoint> shape_checkpoint(const BenchOptions& options) {
  Shape shape = find_shape(options.shape);
  shape.config.max_positions = std::max(shape.config.max_positions, longest_context(options));
  return make_random_checkpoint(shape.name, shape.config, options.seed, options.shape_weights);
}

void check_context(const Engine& engine, const BenchOptions& options) {
  const int64_t longest = longest_context(options), limit = engine.context_limit();
  if (longest <= limit) return;
  throw_error(ExitCode::kUsage, "--prompt-tokens",
              str(longest - options.decode_tokens - 1, " and ", options.decode_tokens + 1, " after them are more than ",
                  limit, ", the context of ", engine.model_path()),
              "Shorten them, or add --rope-scaling and --rope-scale.");
}

std::vector<LinkPeak> measure_link(Device& device) {
  const uint64_t room = std::min(device.vram().free_bytes(), device.host_mem().free_bytes());
  const uint64_t bytes = std::min(kLinkBuffer, room / 8 / kMiB * kMiB);
  std::vector<LinkPeak> peaks;
  if (bytes == 0) return peaks;
  LinkMeter meter(device, bytes);
  for (const LinkUse use : kLinkUses) peaks.push_back(meter.measure(use, bytes, kLinkRound));
  return peaks;
}

std::vector<int32_t> made_up_prompt(int64_t tokens, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(random64(seed, i) % static_cast<uint64_t>(vocab));
  }
  return ids;
}

// Short, but with products of every group size of the row.
int64_t warm_up_tokens(Backend backend, int64_t prompt) {
  if (backend == Backend::kCpu) return std::min(prompt, kCpuWarmUp);
  return prompt <= 2 * kCudaGroup ? prompt : kCudaGroup + prompt % kCudaGroup;
}

class Bench {
 public:
  Bench(const BenchOptions& options, const BenchHooks& hooks) : options_(options), hooks_(hooks) {}
  BenchReport run();

 private:
  void measure_rows();
  void measure_device();
  void open();
  // `label` names the run in a trace; empty: it is not traced.
  GenerateResult generate(int64_t prompt, int64_t steps, KvMode kv, const std::string& label);
  void warm_up(int64_t prompt);
  void measure(BenchRow* row);
  void begin(const std::string& what);

  const BenchOptions& options_;
  const BenchHooks& hooks_;
  std::unique_ptr<Engine> engine_;
  BenchReport report_;
};

// Opens a separate device, and releases it before the weights are loaded.
void Bench::measure_device() {
  DeviceOptions untraced = options_.engine.device;
  untraced.trace_path.clear();
  const std::unique_ptr<Device> device = open_device(untraced);
  if (hooks_.on_device) hooks_.on_device(*device);
  report_.device = device->name();
  report_.vram_limit_bytes = device->vram().limit_bytes();
  report_.host_limit_bytes = device->host_mem().limit_bytes();
  report_.link = measure_link(*device);
}

void Bench::open() {
  std::unique_ptr<Checkpoint> checkpoint;
  if (!options_.shape.empty()) checkpoint = shape_checkpoint(options_);
  report_.machine = read_machine();
  measure_device();
  EngineOptions engine = options_.engine;
  engine.want_tokenizer = false;
  engine.ctx_size = 0;
  engine_ = std::make_unique<Engine>(engine, std::move(checkpoint));
  check_context(*engine_, options_);
  report_.model = engine_->model_path();
  report_.config = engine_->config();
  report_.dtype = engine_->dtype();
  report_.weight_types = engine_->weight_types();
  report_.prefill_type = prefill_type_name(engine_->prefills_in_int8(), engine_->dtype());
  report_.weights_note = engine_->weights_note();
  report_.cache_note = engine_->cache_note();
  report_.cache_type_k = engine.cache_type_k.value_or(engine_->dtype());
  report_.cache_type_v = engine.cache_type_v.value_or(engine_->dtype());
  report_.decode_tokens = options_.decode_tokens;
  report_.repeat = options_.repeat;
  report_.seed = options_.seed;
}

GenerateResult Bench::generate(int64_t prompt, int64_t steps, KvMode kv, const std::string& label) {
  GenerateOptions run;
  run.label = label;
  run.max_tokens = steps + 1;  // prefill gives the first one
  run.kv = kv;
  run.ignore_eos = true;
  run.interrupt = options_.interrupt;
  GenerateResult result =
      engine_->generate(made_up_prompt(prompt, engine_->config().vocab, options_.seed), run, hooks_.progress);
  report_.interrupted = result.finish_reason == FinishReason::kInterrupted;
  report_.load_ms = result.timings.load_ms;
  return result;
}

void Bench::begin(const std::string& what) {
  if (hooks_.on_begin) hooks_.on_begin(what);
}

void Bench::warm_up(int64_t prompt) {
  begin("warm-up");
  generate(warm_up_tokens(engine_->device().backend(), prompt), kWarmUpSteps, KvMode::kAuto, "");
}

void Bench::measure(BenchRow* row) {
  uint64_t in = 0, out = 0, disk = 0;
  const std::string label = str(row->prompt_tokens, " tokens, --kv ", kv_mode_name(row->kv));
  for (int64_t i = 0; i < options_.repeat; ++i) {
    GenerateResult result = generate(row->prompt_tokens, options_.decode_tokens, row->kv, label);
    if (report_.interrupted) return;
    row->prefill_ms.push_back(result.timings.ttft_ms);
    row->step_ms.insert(row->step_ms.end(), result.timings.step_ms.begin(), result.timings.step_ms.end());
    in += result.transfers.decode_h2d_bytes;
    out += result.transfers.decode_d2h_bytes;
    disk += result.spill.file.read_bytes;
    row->spill = result.spill;
    row->decode_ms = result.timings.decode_ms;
    row->host_memory_ms = result.timings.host_memory_ms;
    row->host_wait_ms = result.timings.host_wait_ms;
    row->memory = result.memory;
    row->plan = std::move(result.plan);
    row->predicted = result.predicted;
  }
  const auto steps = static_cast<double>(row->step_ms.size());
  row->h2d_bytes_per_step = static_cast<double>(in) / steps;
  row->d2h_bytes_per_step = static_cast<double>(out) / steps;
  row->disk_bytes_per_step = static_cast<double>(disk) / steps;
}

BenchReport Bench::run() {
  open();
  measure_rows();
  report_.trace = engine_->write_trace();
  return std::move(report_);
}

void Bench::measure_rows() {
  const size_t count = options_.prompt_tokens.size() * options_.kv.size();
  for (const int64_t prompt : options_.prompt_tokens) {
    warm_up(prompt);
    for (const KvMode kv : options_.kv) {
      if (report_.interrupted) return;
      BenchRow row{.prompt_tokens = prompt, .kv = kv};
      begin(str("[", report_.rows.size() + 1, "/", count, "] ", prompt, " ", kv_mode_name(kv)));
      try {
        measure(&row);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kDoesNotFit) throw;
        row = BenchRow();
        row.prompt_tokens = prompt;
        row.kv = kv;
        row.error = error.what();
      }
      if (report_.interrupted) return;
      report_.rows.push_back(std::move(row));
      if (hooks_.on_row) hooks_.on_row(report_);
    }
  }
}

// The quantile `share` of sorted values.
template <typename T>
double at_share(std::vector<T> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return static_cast<double>(values[std::clamp<size_t>(rank, 1, values.size()) - 1]);
}

double per_second(double count, double ms) { return ms > 0 ? count / ms * 1e3 : 0; }

}  // namespace

const char* kv_mode_name(KvMode mode) {
  constexpr const char* kNames[] = {"auto", "device", "host"};
  return kNames[static_cast<size_t>(mode)];
}

double BenchRow::median_prefill_ms() const { return at_share(prefill_ms, 0.5); }
double BenchRow::prefill_tokens_per_s() const {
  return per_second(static_cast<double>(prompt_tokens), median_prefill_ms());
}
double BenchRow::step_ms_at(double share) const { return at_share(step_ms, share); }
double BenchRow::decode_tokens_per_s() const { return per_second(1, step_ms_at(0.5)); }
double BenchRow::link_gb_per_s() const { return per_second(h2d_bytes_per_step, step_ms_at(0.5)) * 1e-9; }

double BenchRow::checksum_share() const { return decode_ms > 0 ? spill.file.checksum_ms / decode_ms : 0; }
double BenchRow::disk_gb_per_s() const { return per_second(disk_bytes_per_step, step_ms_at(0.5)) * 1e-9; }

double BenchReport::link_peak_gb_per_s(LinkUse use) const {
  for (const LinkPeak& peak : link) {
    if (peak.use == use) return peak.gb_per_s;
  }
  return 0;
}

BenchReport run_bench(const BenchOptions& options, const BenchHooks& hooks) {
  CHECK(!options.prompt_tokens.empty() && !options.kv.empty() && options.decode_tokens > 0 && options.repeat > 0);
  return Bench(options, hooks).run();
}

}  // namespace headrace
