#include "tests/support/low_bit_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cache/base.h"

namespace headrace::testing_support {

namespace {

using Row = std::vector<double>;

size_t index(int64_t value) { return static_cast<size_t>(value); }

// Rounded to f16; NaN if that is not finite.
double parameter(double value) {
  const double rounded = f16_to_f32(f32_to_f16(static_cast<float>(value)));
  return std::isfinite(rounded) ? rounded : std::numeric_limits<double>::quiet_NaN();
}
void put_parameter(std::byte* to, double value) {
  const f16 bits = f32_to_f16(static_cast<float>(value));
  std::memcpy(to, &bits, sizeof bits);
}
double get_parameter(const std::byte* from) {
  f16 bits;
  std::memcpy(&bits, from, sizeof bits);
  return f16_to_f32(bits);
}

int quantised(double value, double scale, int low, int high) {
  if (scale == 0 || std::isnan(scale)) return 0;
  return static_cast<int>(std::clamp(std::nearbyint(value / scale), double(low), double(high)));
}

void write_int8(const Row& row, std::byte* values, std::byte* parameters) {
  double most = 0;
  for (double value : row) most = std::isfinite(value) ? std::max(most, std::fabs(value)) : INFINITY;
  const double scale = parameter(static_cast<float>(most) / 127.0f);
  put_parameter(parameters, scale);
  for (size_t i = 0; i < row.size(); ++i) {
    values[i] = static_cast<std::byte>(std::isnan(scale) ? 0 : quantised(row[i], scale, -127, 127));
  }
}

void write_int4(const Row& row, std::byte* values, std::byte* parameters) {
  const Row rotated = rotate(row);
  for (size_t first = 0; first < row.size(); first += kInt4Group) {
    const auto begin = rotated.begin() + static_cast<int64_t>(first), end = begin + kInt4Group;
    const bool finite = std::all_of(begin, end, [](double value) { return std::isfinite(static_cast<float>(value)); });
    double minimum = parameter(*std::min_element(begin, end));
    double scale = parameter((*std::max_element(begin, end) - *std::min_element(begin, end)) / 15);
    if (!finite || std::isnan(scale) || std::isnan(minimum)) scale = minimum = NAN;
    std::byte* to = parameters + first / kInt4Group * 4;
    put_parameter(to, scale);
    put_parameter(to + 2, minimum);
    for (int64_t i = 0; i < kInt4Group / 2; ++i) {
      const int low = std::isnan(scale) ? 0 : quantised(begin[i] - minimum, scale, 0, 15);
      const int high = std::isnan(scale) ? 0 : quantised(begin[i + kInt4Group / 2] - minimum, scale, 0, 15);
      values[first / 2 + index(i)] = static_cast<std::byte>(low | high << 4);
    }
  }
}

Row read_int4(const std::byte* values, const std::byte* parameters, size_t head_dim) {
  Row rotated(head_dim);
  for (size_t i = 0; i < head_dim; ++i) {
    const size_t group = i / kInt4Group, place = i % kInt4Group, half = kInt4Group / 2;
    const int both = static_cast<int>(values[group * half + place % half]);
    const int value = place < half ? both & 15 : both >> 4;
    rotated[i] = value * get_parameter(parameters + 4 * group) + get_parameter(parameters + 4 * group + 2);
  }
  return rotate(rotated);
}

}  // namespace

std::vector<double> rotate(const std::vector<double>& row) {
  CHECK(std::has_single_bit(row.size()), row.size());
  Row out = row;
  for (size_t half = 1; half < row.size(); half *= 2) {
    for (double* low = out.data(); low < out.data() + row.size(); low += 2 * half) {
      for (size_t i = 0; i < half; ++i) {
        const double a = low[i], b = low[half + i];
        low[i] = a + b;
        low[half + i] = a - b;
      }
    }
  }
  for (double& value : out) value /= std::sqrt(static_cast<double>(row.size()));
  return out;
}

std::vector<std::byte> low_bit_plane(const std::vector<float>& values, DType type, int64_t head_dim) {
  const size_t dim = index(head_dim), rows = values.size() / dim;
  const size_t row_values = row_value_bytes(type, head_dim), row_parameters = row_parameter_bytes(type, head_dim);
  std::vector<std::byte> plane(rows * (row_values + row_parameters));
  for (size_t row = 0; row < rows; ++row) {
    const auto from = values.begin() + static_cast<int64_t>(row * dim);
    std::byte* to = plane.data() + row * row_values;
    std::byte* parameters = plane.data() + rows * row_values + row * row_parameters;
    (type == DType::kInt8 ? write_int8 : write_int4)(Row(from, from + head_dim), to, parameters);
  }
  return plane;
}

std::vector<float> low_bit_values(const std::vector<std::byte>& plane, DType type, int64_t head_dim) {
  const size_t dim = index(head_dim), rows = plane.size() / row_bytes(type, head_dim);
  const size_t row_values = row_value_bytes(type, head_dim), row_parameters = row_parameter_bytes(type, head_dim);
  std::vector<float> values;
  for (size_t row = 0; row < rows; ++row) {
    const std::byte* from = plane.data() + row * row_values;
    const std::byte* parameters = plane.data() + rows * row_values + row * row_parameters;
    if (type == DType::kInt4) {
      const Row back = read_int4(from, parameters, dim);
      values.insert(values.end(), back.begin(), back.end());
    } else {
      const double scale = get_parameter(parameters);
      for (size_t i = 0; i < dim; ++i) {
        values.push_back(static_cast<float>(static_cast<int8_t>(from[i]) * scale));
      }
    }
  }
  return values;
}

}  // namespace headrace::testing_support
