// Products in 8 bits of groups of rows, each with its own matrix: experts, of which each has the rows that chose it
// (kernels/experts/op.h). The integers, scales and results of a row are those of int8_product() with its group's
// matrix. What is in a group is known on the device alone. Each op takes one params struct of views and a stream, owns
// nothing and is asynchronous; the CPU body is the truth.
#pragma once

#include <cstdint>

#include "kernels/int8/op.h"

namespace headrace {

constexpr int64_t kMaxInt8Groups = 1024;

// Rows of a set that has `pairs` rows in `groups` groups, at most: a group begins at a multiple of 16 rows on CUDA.
int64_t int8_group_rows(Backend backend, int64_t pairs, int64_t groups);
// Of their values: tiles of the product read beyond the last row.
uint64_t int8_group_rows_bytes(Backend backend, int64_t rows, int64_t cols);
// The matrices of `groups` groups follow each other: values int8_values_bytes() apart, scales n.
uint64_t int8_group_values_bytes(Backend backend, int64_t groups, int64_t n, int64_t k);

// Where the rows of a set are.
struct Int8Groups {
  int32_t* first = nullptr;  // [count]: group g has rows [first[g], end[g])
  int32_t* end = nullptr;    // [count]
  int64_t count = 0;
};

// Brings converted rows into the order of their groups: out[places[row * used + r]] = x[row] for each r. `places` is
// list_pairs()'s, and afterwards holds the places in `out`. What rows of no group hold stays as it is.
struct Int8SpreadParams {
  Int8Rows x;             // [rows, cols], of int8_activation()
  const int32_t* chosen;  // [rows, used]: the group of each pair
  const int32_t* begin;   // [groups.count + 1], of list_pairs()
  int32_t* places;        // [rows, used]
  Int8Groups groups;      // written
  Int8Rows out;           // [int8_group_rows(rows * used, groups.count), cols], int8_group_rows_bytes()
  int64_t rows, used, cols;
};
void int8_spread(const Int8SpreadParams& params, Stream& stream);

// out = x * the matrix of each row's group, as int8_product() computes it. Rows of no group are not written.
struct Int8GroupedProductParams {
  Int8Rows x;       // [rows, k], int8_group_rows_bytes()
  Int8Rows weight;  // [groups.count, n, k], of int8_weight()
  Int8Groups groups;
  const void* bias = nullptr;  // [n] of `type`, of group 0; null: none
  uint64_t bias_stride = 0;    // bytes from a group's bias to the next one's
  int32_t* tiles;              // [int8_group_tiles()], scratch; null on the CPU
  void* out;                   // [rows, n]
  DType type;                  // of out
  int64_t rows, n, k;          // rows: int8_group_rows()
};
int64_t int8_group_tiles(Backend backend, int64_t rows, int64_t groups);
void int8_grouped_product(const Int8GroupedProductParams& params, Stream& stream);

}  // namespace headrace
