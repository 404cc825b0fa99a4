#include "tests/support/golden.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cache/base.h"

namespace headrace::testing {
namespace {

template <typename T>
std::vector<T> array(const std::string& file, uint64_t begin, uint64_t end) {
  CHECK(end <= file.size() && begin <= end && (end - begin) % sizeof(T) == 0);
  std::vector<T> values((end - begin) / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), file.data() + begin, end - begin);
  return values;
}

}  // namespace

Golden read_golden(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  CHECK(file.size() > 8, "no golden file at ", path);
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const nlohmann::json json = nlohmann::json::parse(file.substr(8, header));
  Golden golden;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = 8 + header + entry["data_offsets"][0].get<uint64_t>();
    const uint64_t end = 8 + header + entry["data_offsets"][1].get<uint64_t>();
    golden.shapes[name] = entry["shape"].get<std::vector<int64_t>>();
    if (entry["dtype"] == "I64") golden.ints[name] = array<int64_t>(file, begin, end);
    if (entry["dtype"] == "I32") {
      const std::vector<int32_t> narrow = array<int32_t>(file, begin, end);
      golden.ints[name] = {narrow.begin(), narrow.end()};
    }
    if (entry["dtype"] == "F32") golden.floats[name] = array<float>(file, begin, end);
  }
  return golden;
}

float largest_difference(const float* a, const float* b, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts as larger
  }
  return largest;
}

}  // namespace headrace::testing
