#include "runtime/model/weight_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "offload/host/thread_pool.h"
#include "runtime/model/read_weights.h"

namespace headrace {
namespace {
constexpr uint64_t kAlignment = 256;
constexpr uint64_t kStagingBytes = 16 * kMiB;
constexpr int kMaxWeightParts = static_cast<int>(std::extent_v<decltype(Weight::parts)>);

DType plain_dtype(WeightType type) {
  return type == WeightType::kF32 ? DType::kF32 : type == WeightType::kF16 ? DType::kF16 : DType::kBF16;
}
}  // namespace

// ---- placing --------------------------------------------------------------------------------------------------------

uint64_t WeightStore::Placement::bytes() const {
  return tensor == nullptr ? raw.size() : weight_bytes(type, tensor->rows(), tensor->cols());
}
uint64_t WeightStore::Placement::step_bytes() const {
  return kept() ? static_cast<uint64_t>(std::min(kStoreRows, tensor->rows())) * row_bytes() : row_bytes();
}

uint64_t WeightStore::place(std::initializer_list<const TensorInfo*> parts, DType type) {
  const uint64_t start = bytes_ = round_up(bytes_, kAlignment);
  for (const TensorInfo* tensor : parts) {
    placements_.push_back({tensor, "", plain_weight_type(type), bytes_, 0, 0});
    bytes_ += placements_.back().bytes();
  }
  return start;
}

uint64_t WeightStore::place_raw(std::string bytes) {
  const uint64_t start = bytes_ = round_up(bytes_, kAlignment);
  bytes_ += bytes.size();
  placements_.push_back({nullptr, std::move(bytes), WeightType::kF32, start, 0, 0});
  return start;
}

std::optional<WeightType> quantised_type(WeightPolicy policy) {
  constexpr WeightType kTypes[] = {WeightType::kQ8_0, WeightType::kQ6K, WeightType::kQ5K, WeightType::kQ4K};
  if (policy < WeightPolicy::kQ8_0 || policy == WeightPolicy::kBf16) return std::nullopt;
  return kTypes[static_cast<size_t>(policy) - static_cast<size_t>(WeightPolicy::kQ8_0)];
}

bool dequantises(WeightPolicy policy) { return policy == WeightPolicy::kDequantise || policy == WeightPolicy::kBf16; }

DType computed_in(WeightPolicy policy, DType natural) {
  return policy == WeightPolicy::kBf16 || quantised_type(policy) ? DType::kBF16 : natural;
}

bool prefills_in_int8(PrefillType wanted, const ComputeTypes& types) {
  if (wanted != PrefillType::kAuto) return wanted == PrefillType::kInt8;
  return types.quantised && types.dtype != DType::kF32;
}

// On a GPU, products with kept weights exist for bf16 only; with other types they would be slower than plain products.
WeightStoreOptions weight_options(WeightPolicy policy, std::optional<DType> wanted, DType natural, Backend backend) {
  const std::optional<WeightType> quantised = quantised_type(policy);
  const DType dtype = wanted.value_or(computed_in(policy, natural));
  const bool fast = backend == Backend::kCpu || dtype == DType::kBF16;
  if (policy == WeightPolicy::kBf16 && dtype != DType::kBF16) {
    throw_error(ExitCode::kUsage, "--weights", str("bf16 needs --dtype bf16 or auto, not ", dtype_name(dtype)),
                "--weights dtype loads the weights as --dtype.");
  }
  if (quantised && !fast) {
    throw_error(ExitCode::kUsage, "--weights",
                str(weight_type_info(*quantised).name, " needs bf16 on a GPU, but --dtype is ", dtype_name(dtype)),
                "Leave --dtype out, or use --device cpu.");
  }
  return {.dtype = dtype, .policy = fast ? policy : WeightPolicy::kDequantise};
}

namespace {

WeightType substitute_type(const TensorInfo& tensor, const WeightStoreOptions& options) {
  const WeightType exact = tensor.block_type().value_or(plain_weight_type(options.dtype));
  if (tensor.shape.size() != 2) return exact;
  for (const WeightType type : {quantised_type(options.policy).value(), WeightType::kQ8_0}) {
    if (tensor.cols() % weight_type_info(type).block_elements != 0) continue;
    return weight_bytes(type, 1, tensor.cols()) < weight_bytes(exact, 1, tensor.cols()) ? type : exact;
  }
  return exact;
}

}  // namespace

// Rows that blocks of 256 do not divide are quantised to Q8_0.
WeightType loaded_type(const TensorInfo& tensor, const WeightStoreOptions& options) {
  if (options.substitutes) return substitute_type(tensor, options);
  const WeightType plain = plain_weight_type(options.dtype);
  if (dequantises(options.policy)) return plain;
  if (tensor.block_type()) return *tensor.block_type();
  const std::optional<WeightType> wanted = quantised_type(options.policy);
  if (!wanted || tensor.shape.size() != 2 || find_quantised_type(tensor.stored_type)) return plain;
  for (const WeightType type : {*wanted, WeightType::kQ8_0}) {
    if (tensor.cols() % weight_type_info(type).block_elements == 0) return type;
  }
  const WeightTypeInfo& least = weight_type_info(WeightType::kQ8_0);
  throw_error(ExitCode::kBadInput, "--weights",
              str(weight_type_info(*wanted).name, " needs rows of whole blocks of at least ", least.block_elements,
                  " weights, but the rows of ", printable(tensor.name), " have ", tensor.cols()),
              "Leave --weights out: the matrices are loaded as they are.");
}

// Tensors of one type are one part, whose rows follow each other. A GPU's repacked rows begin at multiples.
bool WeightStore::continues(const WeightPart& part, WeightType type) const {
  return part.type == type && (is_plain(type) || backend_ == Backend::kCpu || part.rows % kStoreRows == 0);
}

std::vector<WeightType> WeightStore::types_of(std::initializer_list<Rows> parts,
                                              const WeightStoreOptions& options) const {
  std::vector<WeightType> types;
  int count = 0;
  WeightPart last;
  for (const Rows& part : parts) {
    types.push_back(part.plain ? plain_weight_type(options.dtype) : loaded_type(*part.tensor, options));
    if (count == 0 || !continues(last, types.back())) ++count, last = {nullptr, types.back(), 0};
    last.rows += part.tensor->rows();
  }
  if (count > kMaxWeightParts) types.assign(types.size(), plain_weight_type(options.dtype));
  return types;
}

void WeightStore::append(const TensorInfo* tensor, WeightType type, Matrix* matrix) {
  Weight& weight = matrix->weight;
  WeightPart* part = weight.count > 0 ? &weight.parts[weight.count - 1] : nullptr;
  if (part == nullptr || !continues(*part, type)) {
    bytes_ = round_up(bytes_, kAlignment);
    CHECK(weight.count < kMaxWeightParts, tensor->name);
    matrix->offsets[static_cast<size_t>(weight.count)] = bytes_;
    part = &weight.parts[weight.count++];
    *part = {nullptr, type, 0};
  }
  const uint64_t start = matrix->offsets[static_cast<size_t>(weight.count - 1)];
  placements_.push_back({tensor, "", type, start, part->rows, 0});
  part->rows += tensor->rows();
  bytes_ = start + stored_weight_bytes(backend_, type, part->rows, weight.cols);
}

WeightStore::Matrix WeightStore::place_matrix(std::initializer_list<Rows> parts, const WeightStoreOptions& options) {
  Matrix matrix;
  const size_t first = placements_.size();
  matrix.weight.cols = parts.begin()->tensor->cols();
  const std::vector<WeightType> types = types_of(parts, options);
  for (size_t i = 0; i < parts.size(); ++i) append(parts.begin()[i].tensor, types[i], &matrix);
  for (int i = 0; i < matrix.weight.count; ++i) {
    const WeightPart& part = matrix.weight.parts[i];
    for (size_t p = first; p < placements_.size(); ++p) {
      Placement& placement = placements_[p];
      if (placement.offset != matrix.offsets[static_cast<size_t>(i)]) continue;
      placement.part_rows = part.rows;
      if (placement.kept()) kept_bytes_ += placement.bytes();
    }
  }
  return matrix;
}

uint64_t WeightStore::next() const { return round_up(bytes_, kAlignment); }

bool WeightTypeUse::quantised() const { return find_quantised_type(stored).has_value(); }
bool WeightTypeUse::quantised_by_load() const { return !quantised() && find_quantised_type(loaded).has_value(); }
bool WeightTypeUse::dequantised() const { return quantised() && !find_quantised_type(loaded).has_value(); }

std::optional<WeightType> WeightStore::quantises_to() const {
  const bool any = std::any_of(placements_.begin(), placements_.end(),
                               [](const Placement& placement) { return placement.quantised_by_load(); });
  return any ? quantised_type(options_.policy) : std::nullopt;
}

std::vector<WeightTypeUse> WeightStore::types() const {
  std::vector<WeightTypeUse> types;
  for (const Placement& p : placements_) {
    if (p.tensor == nullptr) continue;
    const char* const loaded = weight_type_info(p.type).name;
    auto use = std::find_if(types.begin(), types.end(), [&](const WeightTypeUse& each) {
      return each.stored == p.tensor->stored_type && each.loaded == loaded;
    });
    if (use == types.end()) use = types.insert(types.end(), {p.tensor->stored_type, loaded});
    ++use->tensors;
    use->stored_bytes += p.tensor->stored_bytes;
    use->bytes += stored_weight_bytes(backend_, p.type, p.tensor->rows(), p.tensor->cols());
  }
  std::stable_sort(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return types;
}

// ---- loading --------------------------------------------------------------------------------------------------------

uint64_t WeightStore::least_slot_bytes() const {
  uint64_t least = 0;
  for (const Placement& p : placements_) least = std::max(least, p.step_bytes());
  return least;
}

uint64_t WeightStore::slot_bytes() const { return std::max(std::min(kStagingBytes, bytes_), least_slot_bytes()); }

uint64_t WeightStore::staging_bytes() const {
  return loaded_ || backend_ == Backend::kCpu ? 0 : 2 * whole_pages(slot_bytes());
}

void WeightStore::note_damage(std::string line) {
  constexpr size_t kMaxLines = 4;
  const int64_t unnamed = ++damage_.tensors - static_cast<int64_t>(kMaxLines) + 1;
  if (damage_.lines.size() < kMaxLines) {
    damage_.lines.push_back(std::move(line));
  } else {
    damage_.lines.back() = str(unnamed, " more tensors hold NaN or infinity");
  }
}

void refuse_damage(const std::string& model, const WeightDamage& damage) {
  if (damage.tensors == 0) return;
  std::string what = str("has ", damage.tensors, damage.tensors == 1 ? " damaged tensor" : " damaged tensors");
  for (size_t i = 0; i < damage.lines.size(); ++i) what += (i == 0 ? ": " : "; ") + damage.lines[i];
  throw_error(ExitCode::kBadInput, model, what,
              "Unless the message says what helps, get the file again. --allow-damaged-weights makes this a warning.");
}

// Where rows are read to, and their way from there into the store. On the CPU, and for host memory, they are read
// straight into place; for a GPU there are two pinned buffers, filled in turn, and as many on the device for blocks
// that are then repacked, into host memory as well.
class WeightStore::Loading {
 public:
  Loading(Device& device, WeightStore& store) : store_(store) {
    step_bytes_ = store.slot_bytes();
    if (device.backend() == Backend::kCpu) return;
    // If two such buffers do not fit, use smaller ones.
    const auto fitting = [&](const MemoryBudget& budget) {
      const uint64_t room = budget.free_bytes() / 2 / kPageBytes * kPageBytes;
      return std::max(std::min(step_bytes_, room), store.least_slot_bytes());
    };
    step_bytes_ = fitting(device.host_mem());
    if (store.keeps_blocks()) step_bytes_ = fitting(device.vram());
    stream_ = device.make_stream("weights", StreamRole::kCopy);
    for (Slot& slot : slots_) {
      slot.memory = device.allocate_pinned(step_bytes_, "staging of the weights");
      if (store.keeps_blocks()) slot.blocks = device.allocate(step_bytes_, "weights before they are repacked");
      slot.sent = device.make_event();
    }
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;
  ~Loading() {
    if (stream_) drain(*stream_);  // before the slots go
  }

  int64_t rows_of_step(const Placement& p) const {
    const auto rows = static_cast<int64_t>(step_bytes_ / p.row_bytes());
    return p.kept() && rows > kStoreRows ? rows / kStoreRows * kStoreRows : rows;
  }
  // Where to read rows from `row` on to. Blocks until a buffer's last copy is done.
  std::byte* next(const Placement& p, int64_t row) {
    if (in_place(p)) return place_of(p, row);
    current_ ^= 1;
    slots_[current_].sent->synchronize();
    return slots_[current_].memory.data();
  }
  // Rows [row, end) have been read.
  void send(const Placement& p, int64_t row, int64_t end) {
    if (in_place(p)) return;
    Slot& slot = slots_[current_];
    const uint64_t bytes = static_cast<uint64_t>(end - row) * p.row_bytes();
    stream_->copy(p.kept() ? slot.blocks.data() : place_of(p, row), slot.memory.data(), bytes, Link::kHostToDevice);
    if (p.kept()) {
      store_weight({.blocks = slot.blocks.data(),
                    .type = p.type,
                    .out = store_.place_of(p.offset),
                    .rows = p.part_rows,
                    .cols = p.tensor->cols(),
                    .row_begin = p.first_row + row,
                    .row_end = p.first_row + end},
                   *stream_);
    }
    stream_->record(*slot.sent);
  }
  void finish() {
    if (stream_) stream_->synchronize();
  }

 private:
  bool in_place(const Placement& p) const {
    return !stream_ || (!p.kept() && store_.part_of(p.offset).host.bytes() > 0);
  }
  // In the store, where rows are as they are read.
  std::byte* place_of(const Placement& p, int64_t row) const {
    return store_.place_of(p.offset) + static_cast<uint64_t>(p.first_row + row) * p.row_bytes();
  }
  struct Slot {
    PinnedBuffer memory;
    DeviceBuffer blocks;
    std::unique_ptr<Event> sent;
  };
  const WeightStore& store_;
  uint64_t step_bytes_ = 0;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
  std::unique_ptr<Stream> stream_;  // null on the CPU
};

std::string WeightStore::read_rows(const TensorSource& source, const Placement& p, int64_t row, int64_t end,
                                   std::byte* dst, ThreadPool& pool) const {
  if (p.quantised_by_load()) return quantise_rows(source, *p.tensor, p.type, row, end, dtype(), dst, pool);
  if (p.kept()) return copy_blocks(source, *p.tensor, row, end, dtype(), dst, pool);
  return convert_rows(source, *p.tensor, row, end, plain_dtype(p.type), dst, pool);
}

bool WeightStore::load(const TensorSource& source, Device& device, const char* what, Progress* progress,
                       const std::atomic<bool>* interrupt) {
  Loading loading(device, *this);
  ThreadPool pool(device.threads());
  damage_ = {};
  uint64_t done = 0, all = 0;
  for (const Placement& p : placements_) all += p.bytes();
  if (progress) progress->begin(what, "bytes", static_cast<int64_t>(all));
  for (const Placement& p : placements_) {
    if (p.tensor == nullptr) {
      std::memcpy(loading.next(p, 0), p.raw.data(), p.raw.size());
      loading.send(p, 0, 1);
      continue;
    }
    const int64_t step = loading.rows_of_step(p);
    bool damaged = false;
    for (int64_t row = 0; row < p.tensor->rows(); row += step) {
      if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
        if (progress) progress->end();
        return false;
      }
      const int64_t end = std::min(p.tensor->rows(), row + step);
      std::string damage = read_rows(source, p, row, end, loading.next(p, row), pool);
      if (!damage.empty() && !std::exchange(damaged, true)) note_damage(std::move(damage));
      loading.send(p, row, end);
      done += static_cast<uint64_t>(end - row) * p.row_bytes();
      if (progress) progress->update(static_cast<int64_t>(done));
    }
  }
  loading.finish();
  if (progress) progress->end();
  return loaded_ = true;
}

}  // namespace headrace
