#include "runtime/model/stored_type.h"

namespace headrace {
namespace {

// Types that products do not read. A level of IQ4_NL is one of Q8_0's, under the same scale, and a level of Q3_K one of
// Q6_K's. IQ4_XS has scales of 6 bits above levels of 8, and Q2_K has a minimum every 16 weights: no other type has.
struct Other {
  std::string_view stored;
  std::optional<WeightType> kept;
};
constexpr Other kOtherTypes[] = {
    {"IQ4_NL", WeightType::kQ8_0}, {"Q3_K", WeightType::kQ6K}, {"IQ4_XS", std::nullopt}, {"Q2_K", std::nullopt}};

const Other* find_other(std::string_view stored) {
  for (const Other& other : kOtherTypes) {
    if (other.stored == stored) return &other;
  }
  return nullptr;
}

}  // namespace

bool is_quantised(std::string_view stored) {
  const WeightTypeInfo* const info = find_weight_type(stored);
  return info != nullptr ? !is_plain(info->type) : find_other(stored) != nullptr;
}

std::optional<WeightType> kept_type(std::string_view stored) {
  const WeightTypeInfo* const info = find_weight_type(stored);
  if (info != nullptr) return is_plain(info->type) ? std::nullopt : std::optional(info->type);
  const Other* const other = find_other(stored);
  return other != nullptr ? other->kept : std::nullopt;
}

}  // namespace headrace
