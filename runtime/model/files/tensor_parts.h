// The tensors of a model's files as a decoder names and shapes them (runtime/model/decoder_tensors.h). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/families/family.h"
#include "runtime/model/files/row_order.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

// Where the elements of a part are that are not neighbours in the stored tensor: that of (row, col) is the one with the
// number first + row * rows_apart + col * cols_apart.
struct ElementPlaces {
  int64_t first = 0, rows_apart = 0, cols_apart = 0;
  bool as_stored() const { return cols_apart == 0; }
};

// A stored tensor, or some of its rows: a range, or those that `order` says. A vector's elements are its rows there.
struct TensorPart {
  TensorInfo tensor;
  size_t stored = 0;  // index of the stored tensor
  int64_t first_row = 0;
  RowOrder order = {};
  StoredAs as = StoredAs::kItself;
  ElementPlaces places = {};          // of blocks in MXFP4: of rows
  std::optional<size_t> scales = {};  // of blocks in MXFP4 (mxfp4.h): the index of the tensor of their scales
  // Of a part of a tensor that all experts share: its values are in the run `run` of so many of equal size.
  int64_t run = 0, runs = 1;
};

// What a format has of its own.
struct StoredForm {
  const JsonForm* json = nullptr;  // null: names and values are the decoder's
  bool rotary_pairs = false;       // as in GgufForm
};

// `stored` has Hugging Face names, and those of a directory may be another form's. Q, K and V that are stored as one
// matrix (qkv_proj) are three parts, gate and up (gate_up_proj) are two, and so are q and its gates (q_proj, where the
// output is gated: each head has head_dim rows of q, then as many of its gate). The matrices of all experts that are
// one tensor (mlp.experts.gate_proj.weight, …) are one part an expert, or two, and so are their biases. Throws
// Error(kBadInput) if such a matrix has another shape than the config asks for.
std::vector<TensorPart> decoder_parts(const ModelConfig& config, const std::vector<TensorInfo>& stored,
                                      const std::string& source, const StoredForm& form);

}  // namespace headrace
