// The head sizes that kernels are compiled for: a head has the next larger one, and zeros beyond its own. Host code,
// internal to the folder.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/int8_attention/layout.h"

namespace headrace::kernels::cuda {

template <typename Body>
void const_dim(int64_t head_dim, const Body& body) {
  switch (kv8_instance(head_dim)) {
    case 64:
      return body(std::integral_constant<int, 64>());
    case 128:
      return body(std::integral_constant<int, 128>());
    default:
      return body(std::integral_constant<int, 256>());
  }
}

}  // namespace headrace::kernels::cuda
