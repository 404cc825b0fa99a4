#include "runtime/model/weights.h"

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <utility>

#include "offload/thread_pool.h"

namespace headrace {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kStagingBytes = 16 * kMiB;

// Lays tensors out one after another and remembers where each goes; the pointers are known once the buffer is.
class Layout {
 public:
  Layout(const Checkpoint& checkpoint, DType dtype) : checkpoint_(checkpoint), dtype_(dtype) {}

  // One matrix made of several tensors, rows after rows. Returns its offset.
  uint64_t place(std::initializer_list<std::pair<std::string, std::vector<int64_t>>> parts) {
    const uint64_t start = round_up(bytes_, kAlignment);
    bytes_ = start;
    for (const auto& [name, shape] : parts) {
      const TensorInfo& tensor = checkpoint_.require(name, shape);
      placements_.push_back({&tensor, bytes_});
      bytes_ += static_cast<uint64_t>(tensor.rows() * tensor.cols()) * dtype_bytes(dtype_);
    }
    return start;
  }

  uint64_t bytes() const { return bytes_; }
  std::vector<WeightPlacement>& placements() { return placements_; }

 private:
  const Checkpoint& checkpoint_;
  const DType dtype_;
  uint64_t bytes_ = 0;
  std::vector<WeightPlacement> placements_;
};

// Converts rows on several threads; an exception of one is rethrown here.
void convert_rows(const Checkpoint& checkpoint, const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                  DType dtype, std::byte* dst, ThreadPool& pool) {
  const int64_t slices = std::min<int64_t>(row_end - row_begin, pool.threads() * 4), rows = row_end - row_begin;
  const uint64_t row_bytes = static_cast<uint64_t>(tensor.cols()) * dtype_bytes(dtype);
  std::exception_ptr error;
  std::mutex mutex;
  pool.parallel_for(slices, [&](int64_t slice, int) {
    const int64_t begin = rows * slice / slices, end = rows * (slice + 1) / slices;
    try {
      checkpoint.read_rows(tensor, row_begin + begin, row_begin + end, dtype,
                           dst + static_cast<uint64_t>(begin) * row_bytes);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

// The two staging buffers, filled in turn.
class Staging {
 public:
  explicit Staging(Device& device, uint64_t bytes) : stream_(device.make_stream("weights", StreamRole::kCopy)) {
    for (Slot& slot : slots_) slot = {device.allocate_pinned(bytes, "staging of the weights"), device.make_event()};
  }

  std::byte* next() {  // blocks until the slot's last copy is done
    current_ ^= 1;
    slots_[current_].copied->synchronize();
    return slots_[current_].memory.data();
  }
  void send(std::byte* dst, uint64_t bytes) {
    stream_->copy(dst, slots_[current_].memory.data(), bytes, Link::kHostToDevice);
    stream_->record(*slots_[current_].copied);
  }
  void finish() { stream_->synchronize(); }

 private:
  struct Slot {
    PinnedBuffer memory;
    std::unique_ptr<Event> copied;
  };
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
  std::unique_ptr<Stream> stream_;  // last: it drains before the slots go
};

struct LayerOffsets {
  uint64_t input_norm, qkv, qkv_bias, q_norm, k_norm, output, output_bias, ffn_norm, gate_up, down;
};

LayerOffsets place_layer(const ModelConfig& c, int64_t index, Layout* layout) {
  const std::string p = str("model.layers.", index, "."), attention = p + "self_attn.", mlp = p + "mlp.";
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  LayerOffsets at{};
  at.input_norm = layout->place({{p + "input_layernorm.weight", {c.hidden}}});
  at.qkv = layout->place({{attention + "q_proj.weight", {q, c.hidden}},
                          {attention + "k_proj.weight", {kv, c.hidden}},
                          {attention + "v_proj.weight", {kv, c.hidden}}});
  if (c.qkv_bias) {
    at.qkv_bias = layout->place(
        {{attention + "q_proj.bias", {q}}, {attention + "k_proj.bias", {kv}}, {attention + "v_proj.bias", {kv}}});
  }
  if (c.qk_norm) {
    at.q_norm = layout->place({{attention + "q_norm.weight", {c.head_dim}}});
    at.k_norm = layout->place({{attention + "k_norm.weight", {c.head_dim}}});
  }
  at.output = layout->place({{attention + "o_proj.weight", {c.hidden, q}}});
  if (c.output_bias) at.output_bias = layout->place({{attention + "o_proj.bias", {c.hidden}}});
  at.ffn_norm = layout->place({{p + "post_attention_layernorm.weight", {c.hidden}}});
  at.gate_up =
      layout->place({{mlp + "gate_proj.weight", {c.ffn, c.hidden}}, {mlp + "up_proj.weight", {c.ffn, c.hidden}}});
  at.down = layout->place({{mlp + "down_proj.weight", {c.hidden, c.ffn}}});
  return at;
}

LayerWeights views(const ModelConfig& c, const LayerOffsets& at, const std::byte* memory) {
  LayerWeights w;
  w.input_norm = memory + at.input_norm;
  w.qkv = memory + at.qkv;
  if (c.qkv_bias) w.qkv_bias = memory + at.qkv_bias;
  if (c.qk_norm) w.q_norm = memory + at.q_norm, w.k_norm = memory + at.k_norm;
  w.output = memory + at.output;
  if (c.output_bias) w.output_bias = memory + at.output_bias;
  w.ffn_norm = memory + at.ffn_norm;
  w.gate_up = memory + at.gate_up;
  w.down = memory + at.down;
  return w;
}

}  // namespace

Weights Weights::reserve(const Checkpoint& checkpoint, Device& device, DType dtype) {
  const ModelConfig& c = checkpoint.config();
  Layout layout(checkpoint, dtype);
  const uint64_t embedding = layout.place({{"model.embed_tokens.weight", {c.vocab, c.hidden}}});
  std::vector<LayerOffsets> at;
  for (int64_t i = 0; i < c.layers; ++i) at.push_back(place_layer(c, i, &layout));
  const uint64_t final_norm = layout.place({{"model.norm.weight", {c.hidden}}});
  const uint64_t head = c.tied_head ? embedding : layout.place({{"lm_head.weight", {c.vocab, c.hidden}}});

  Weights weights;
  weights.dtype_ = dtype;
  weights.memory_ = device.allocate(layout.bytes(), "weights");
  weights.placements_ = std::move(layout.placements());
  const std::byte* const memory = weights.memory_.data();
  for (const LayerOffsets& offsets : at) weights.layers_.push_back(views(c, offsets, memory));
  weights.embedding_ = memory + embedding;
  weights.final_norm_ = memory + final_norm;
  weights.head_ = memory + head;
  return weights;
}

bool Weights::load(const Checkpoint& checkpoint, Device& device, Progress* progress,
                   const std::atomic<bool>* interrupt) {
  uint64_t largest_row = 0;
  for (const WeightPlacement& p : placements_) {
    largest_row = std::max(largest_row, static_cast<uint64_t>(p.tensor->cols()) * dtype_bytes(dtype_));
  }
  const uint64_t slot_bytes = std::max(std::min(kStagingBytes, bytes()), largest_row);
  Staging staging(device, slot_bytes);
  ThreadPool pool(device.threads());
  if (progress) progress->begin("loading weights", "bytes", static_cast<int64_t>(bytes()));
  for (const auto& [tensor, offset] : placements_) {
    const uint64_t row_bytes = static_cast<uint64_t>(tensor->cols()) * dtype_bytes(dtype_);
    const int64_t step = static_cast<int64_t>(slot_bytes / row_bytes);
    for (int64_t row = 0; row < tensor->rows(); row += step) {
      if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
        if (progress) progress->end();
        return false;
      }
      const int64_t end = std::min(tensor->rows(), row + step);
      convert_rows(checkpoint, *tensor, row, end, dtype_, staging.next(), pool);
      staging.send(memory_.data() + offset + static_cast<uint64_t>(row) * row_bytes,
                   static_cast<uint64_t>(end - row) * row_bytes);
      if (progress) progress->update(static_cast<int64_t>(offset + static_cast<uint64_t>(end) * row_bytes));
    }
    checkpoint.release_pages(*tensor);
  }
  staging.finish();
  if (progress) progress->end();
  return loaded_ = true;
}

}  // namespace headrace
