#include "runtime/model/random_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/weights/blocks.h"
#include "kernels/weights/grids.h"
#include "runtime/base/random.h"
#include "runtime/model/convert.h"
#include "runtime/model/decoder_tensors.h"

namespace headrace {
namespace {

// The number of equally likely values of a draw; a random word gives four draws. Values of the normal distribution come
// from a table instead of being computed, because an 8B model has eight billion of them.
constexpr int kQuantileBits = 12;
constexpr size_t kQuantiles = size_t{1} << kQuantileBits;
constexpr uint64_t kDraws = 4;  // per word

// z with P(Z <= z) = p, for p below 1/2, by bisection.
double normal_quantile(double p) {
  double low = -10, high = 0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

std::array<float, kQuantiles> make_quantiles() {
  std::array<float, kQuantiles> values{};
  for (size_t i = 0; i < kQuantiles / 2; ++i) {
    const double z = normal_quantile((static_cast<double>(i) + 0.5) / kQuantiles);
    values[i] = static_cast<float>(z);
    values[kQuantiles - 1 - i] = static_cast<float>(-z);
  }
  return values;
}

const std::array<float, kQuantiles>& quantiles() {
  static const std::array<float, kQuantiles> values = make_quantiles();
  return values;
}

// Elements [begin, end) of the tensor, each an entry of `table`.
template <typename Element>
void draw(uint64_t key, int64_t begin, int64_t end, const std::array<Element, kQuantiles>& table, Element* out) {
  for (auto i = static_cast<uint64_t>(begin); i < static_cast<uint64_t>(end);) {
    uint64_t word = random64(key, i / kDraws) >> (i % kDraws * 16);
    const uint64_t stop = std::min<uint64_t>((i / kDraws + 1) * kDraws, static_cast<uint64_t>(end));
    for (; i < stop; ++i, word >>= 16) *out++ = table[word & (kQuantiles - 1)];
  }
}

template <typename Element>
void draw_as(DType type, const std::array<float, kQuantiles>& values, uint64_t key, int64_t begin, int64_t end,
             void* out) {
  std::array<Element, kQuantiles> table;
  convert_elements(DType::kF32, reinterpret_cast<const char*>(values.data()), type, table.data(), kQuantiles);
  draw(key, begin, end, table, static_cast<Element*>(out));
}

// ---- what a tensor's values are drawn from ----

std::array<float, kQuantiles> normal(double deviation) {
  std::array<float, kQuantiles> values = quantiles();
  for (float& value : values) value *= static_cast<float>(deviation);
  return values;
}

// of((i + 1/2) / kQuantiles) for each i.
template <typename Of>
std::array<float, kQuantiles> quantiles_of(Of of) {
  std::array<float, kQuantiles> values;
  for (size_t i = 0; i < kQuantiles; ++i)
    values[i] = static_cast<float>(of((static_cast<double>(i) + 0.5) / kQuantiles));
  return values;
}

// A token's decay is exp(A softplus(a + dt_bias)), where a is normal. As models of this kind are initialised before
// they are trained (Mamba-2, arXiv 2405.21060): -A is even in (0, 16], and softplus(dt_bias) log-even in [0.001, 0.1].
// So heads remember between a token and some thousands, and no state grows.
constexpr double kMostDecay = 16, kLeastStep = 1e-3, kMostStep = 0.1;

std::array<float, kQuantiles> drawn_from(const TensorInfo& tensor) {
  const auto ends = [&](const char* end) { return tensor.name.ends_with(end); };
  const bool norm = tensor.name.find("layernorm") != std::string::npos || ends("norm.weight");
  if (norm || ends(".layer_scalar") || ends(".scale")) return quantiles_of([](double) { return 1; });
  if (tensor.name.ends_with("linear_attn.A")) return quantiles_of([](double share) { return -kMostDecay * share; });
  if (tensor.name.ends_with("linear_attn.dt_bias")) {
    return quantiles_of([](double share) {
      const double step = kLeastStep * std::pow(kMostStep / kLeastStep, share);
      return step + std::log(-std::expm1(-step));  // the inverse of softplus
    });
  }
  // A channel of the convolution sums four tokens.
  if (tensor.name.ends_with("linear_attn.conv1d.weight")) return normal(0.5);
  return normal(1 / std::sqrt(static_cast<double>(tensor.cols())));
}

uint64_t key_of(uint64_t seed, size_t tensor) { return mix64(mix64(seed) + tensor); }

// "llama-3.1-8b with random q4_k_m weights"
std::string name_of(const std::string& shape, const WeightMixture* mixture) {
  return str(shape, " with random ", mixture == nullptr ? "" : str(mixture->name, " "), "weights");
}

void check_row_length(const WeightMixture& mixture, const TensorInfo& tensor) {
  const WeightTypeInfo& info = weight_type_info(tensor.block_type().value());
  if (tensor.cols() % info.block_elements == 0) return;
  throw_error(ExitCode::kUsage, "--weights",
              str(mixture.name, " stores ", tensor.name, " as ", info.name, ", whose blocks hold ", info.block_elements,
                  " weights of a row, but its rows have ", tensor.cols()),
              "The blocks of q4_0, q4_1, q5_0, q5_1, q8_0 and mxfp4 hold 32.");
}

// ---- quantised blocks of random bits ----

constexpr int64_t kMaxBlockBytes = 256;

// The first two moments of a number whose bits are random.
struct Moments {
  double mean, square;
};
// One of [low, high], each equally likely.
constexpr Moments uniform(double low, double high) {
  const double mean = (low + high) / 2, count = high - low + 1;
  return {mean, mean * mean + (count * count - 1) / 12};
}

// Of the levels that four random bits stand for.
constexpr Moments moments_of(const int8_t (&levels)[16]) {
  Moments moments{};
  for (const int8_t level : levels) {
    moments.mean += level / 16.0;
    moments.square += level * level / 16.0;
  }
  return moments;
}

// Of the levels of a grid's entries, with signs that are random bits.
template <typename Words, size_t kCount>
constexpr Moments moments_of(const Words& grid, const uint8_t (&levels)[kCount], double factor) {
  constexpr int kDigits = 2 * sizeof(grid.words[0]);
  Moments moments{};
  for (const auto word : grid.words) {
    for (int i = 0; i < kDigits; ++i) {
      const double level = factor * levels[word >> 4 * i & 15];
      moments.square += level * level / (kDigits * Words::kEntries);
    }
  }
  return moments;
}

// A weight is scale * group * level, and plus or minus min * group: levels and groups are random bits, the block's
// scale and min are f16 numbers.
struct Form {
  int64_t scale_at, min_at;  // min_at < 0: the type has none
  double min_factor;         // min = min_factor * scale * level.mean makes the weights' mean 0
  Moments group, level;
};

Form form_of(WeightType type) {
  constexpr Moments kNoGroup = {1, 1}, kGroup4 = uniform(0, 15), kGroup6 = uniform(0, 63), kSigned6 = uniform(-32, 31),
                    kGroup8 = uniform(-128, 127), kTable = moments_of(kLevels);
  constexpr Moments kOdd = {16, 16 * 16 + 4 * (16 * 16 - 1) / 12.0};  // 1, 3, ... 31
  constexpr Form kForms[] = {
      {0, -1, 0, kNoGroup, uniform(-8, 7)},      // Q4_0
      {0, 2, -1, kNoGroup, uniform(0, 15)},      // Q4_1
      {0, -1, 0, kNoGroup, uniform(-16, 15)},    // Q5_0
      {0, 2, -1, kNoGroup, uniform(0, 31)},      // Q5_1
      {0, -1, 0, kNoGroup, uniform(-128, 127)},  // Q8_0
      {0, 2, 1, kGroup6, uniform(0, 15)},        // Q4_K
      {0, 2, 1, kGroup6, uniform(0, 31)},        // Q5_K
      {208, -1, 0, kGroup8, uniform(-32, 31)},   // Q6_K
      {80, 82, 1, kGroup4, uniform(0, 3)},       // Q2_K
      {108, -1, 0, kSigned6, uniform(-4, 3)},    // Q3_K
      {0, -1, 0, kNoGroup, kTable},              // IQ4_NL
      {0, -1, 0, kSigned6, kTable},              // IQ4_XS
      {0, -1, 0, kOdd, moments_of(kGrid2Xxs, kLevels2, grid_factor(WeightType::kIQ2XXS))},
      {0, -1, 0, kOdd, moments_of(kGrid2Xs, kLevels2, grid_factor(WeightType::kIQ2XS))},
      {0, -1, 0, kOdd, moments_of(kGrid2S, kLevels2, grid_factor(WeightType::kIQ2S))},
      {0, -1, 0, kOdd, moments_of(kGrid3Xxs, kLevels3Xxs, grid_factor(WeightType::kIQ3XXS))},
      {0, -1, 0, kOdd, moments_of(kGrid3S, kLevels3S, grid_factor(WeightType::kIQ3S))},
      {0, -1, 0, kNoGroup, moments_of(kFloatLevels)},  // MXFP4, but for its scale
  };
  CHECK(!is_plain(type), weight_type_info(type).name, " has no blocks");
  return kForms[quantised_index(type)];
}

// The scale that gives a variance of 1 / cols.
double scale_of(const Form& form, int64_t cols) {
  double variance = form.group.square * form.level.square;
  if (form.min_at >= 0) {
    const double level2 = form.level.mean * form.level.mean;
    variance += level2 * (form.group.square - 2 * form.group.mean * form.group.mean);
  }
  return 1 / std::sqrt(variance * static_cast<double>(cols));
}

// Of MXFP4, the powers of two on either side of a scale, by chance, so that their mean square is the scale's.
struct PowersOfTwo {
  int low;
  double share;  // of the higher one

  explicit PowersOfTwo(double scale)
      : low(static_cast<int>(std::floor(std::log2(scale)))), share((std::pow(scale / std::exp2(low), 2) - 1) / 3) {}
  int exponent(uint8_t drawn) const { return drawn < 256 * share ? low + 1 : low; }
};

uint16_t f16_bits(double value) { return f32_to_f16(static_cast<float>(value)).bits; }

void store_bits(uint16_t bits, char* at) { std::memcpy(at, &bits, sizeof bits); }

// Blocks [begin, end) of the sequence of `key`, each a pure function of type, columns, key and index. The weights have
// a mean of 0 and a variance of 1 / cols.
void draw_blocks(WeightType type, int64_t cols, uint64_t key, int64_t begin, int64_t end, void* out) {
  constexpr uint16_t kSign = 0x8000;
  const Form form = form_of(type);
  const auto bytes = static_cast<size_t>(weight_type_info(type).block_bytes);
  CHECK(bytes <= kMaxBlockBytes, weight_type_info(type).name);
  const double scale = scale_of(form, cols);
  const uint16_t scale_bits = f16_bits(scale), min_bits = f16_bits(form.min_factor * scale * form.level.mean);
  const PowersOfTwo powers(scale);
  const size_t words = (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  uint64_t block[kMaxBlockBytes / sizeof(uint64_t)];
  char* const first = reinterpret_cast<char*>(block);
  char* to = static_cast<char*>(out);
  for (int64_t i = begin; i < end; ++i, to += bytes) {
    for (size_t w = 0; w < words; ++w) block[w] = random64(key, static_cast<uint64_t>(i) * words + w);
    if (type == WeightType::kMXFP4) {  // levels of both signs are as likely
      *first = static_cast<char>(powers.exponent(static_cast<uint8_t>(*first)) + 128);
      std::memcpy(to, block, bytes);
      continue;
    }
    uint16_t drawn = 0;  // without a min, the scale's sign is random, which takes away the mean
    if (form.min_at < 0) std::memcpy(&drawn, first + form.scale_at, sizeof drawn);
    store_bits(static_cast<uint16_t>(scale_bits | (drawn & kSign)), first + form.scale_at);
    if (form.min_at >= 0) store_bits(min_bits, first + form.min_at);
    std::memcpy(to, block, bytes);
  }
}

// ---- the model ----

class RandomCheckpoint final : public Checkpoint {
 public:
  RandomCheckpoint(const std::string& name, const ModelConfig& config, uint64_t seed, const WeightMixture* mixture)
      : seed_(seed), content_(str("random ", mixture == nullptr ? "" : mixture->name, " weights of seed ", seed)) {
    config_ = config;
    path_ = name_of(name, mixture);
    format_ = "random";
    std::vector<TensorInfo> infos;
    for (DecoderTensor& tensor : decoder_tensors(config)) {
      TensorInfo info{std::move(tensor.name), std::move(tensor.shape), "random", 0};
      const bool router =  // never quantised
          info.name.ends_with("mlp.gate.weight") || info.name.ends_with("mlp.shared_expert_gate.weight");
      if (mixture != nullptr && info.shape.size() == 2 && !router) {
        const WeightType type = mixture_type(*mixture, config, info.name);
        info.stored_type = weight_type_info(type).name;
        check_row_length(*mixture, info);
        info.stored_bytes = weight_bytes(type, info.rows(), info.cols());
      }
      infos.push_back(std::move(info));
    }
    set_tensors(std::move(infos));
  }

  void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const override;
  void read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const override;
  ByteRange stored_range(const TensorInfo&) const override { return {&content_bytes_, 0, content_bytes_.size()}; }
  DType natural_dtype() const override { return DType::kBF16; }
  bool has_tokenizer() const override { return false; }
  Tokenizer load_tokenizer() const override {
    throw_error(ExitCode::kUsage, path_, "has no tokenizer", "Only headrace bench takes a shape.");
  }
  std::string chat_template() const override { return ""; }

 private:
  void read_dequantised(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const;

  const uint64_t seed_;
  const std::string content_;  // identifies the weights
  const MemoryBytes content_bytes_{content_, "random weights"};
};

void RandomCheckpoint::read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const {
  check_rows(tensor, row_begin, row_end);
  const WeightType type = tensor.block_type().value();
  const int64_t blocks_a_row = tensor.cols() / weight_type_info(type).block_elements;
  draw_blocks(type, tensor.cols(), key_of(seed_, index_of(tensor)), row_begin * blocks_a_row, row_end * blocks_a_row,
              dst);
}

// Row by row, so that the blocks of a row are still in the cache.
void RandomCheckpoint::read_dequantised(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type,
                                        void* dst) const {
  const WeightType stored = tensor.block_type().value();
  const int64_t blocks = tensor.cols() / weight_type_info(stored).block_elements;
  std::vector<char> row(weight_bytes(stored, 1, tensor.cols()));
  char* out = static_cast<char*>(dst);
  for (int64_t i = row_begin; i < row_end; ++i, out += static_cast<size_t>(tensor.cols()) * dtype_bytes(type)) {
    read_blocks(tensor, i, i + 1, row.data());
    dequantise_blocks(stored, row.data(), blocks, type, out);
  }
}

void RandomCheckpoint::read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type,
                                 void* dst) const {
  check_rows(tensor, row_begin, row_end);
  if (tensor.block_type()) return read_dequantised(tensor, row_begin, row_end, type, dst);
  const int64_t begin = row_begin * tensor.cols(), end = row_end * tensor.cols();
  const uint64_t key = key_of(seed_, index_of(tensor));
  if (type == DType::kF32) {
    draw_as<uint32_t>(type, drawn_from(tensor), key, begin, end, dst);
  } else {
    draw_as<uint16_t>(type, drawn_from(tensor), key, begin, end, dst);
  }
}

}  // namespace

std::unique_ptr<Checkpoint> make_random_checkpoint(const std::string& name, const ModelConfig& config, uint64_t seed,
                                                   const WeightMixture* mixture) {
  return std::make_unique<RandomCheckpoint>(name, config, seed, mixture);
}

}  // namespace headrace
