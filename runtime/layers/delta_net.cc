#include "runtime/layers/delta_net.h"

#include "offload/device/trace.h"
#include "runtime/model/config_check.h"

namespace headrace {
namespace {

DeltaInputsParams inputs(const Pass& pass, const LayerWeights& layer, const DeltaState& at, const DeltaWork& work) {
  const DeltaShape shape = delta_shape(layer.spec.delta_net());
  return {.shape = shape,
          .in = pass.work.qkv,
          .conv = at.conv,
          .conv_weight = layer.conv,
          .decay = layer.decay,
          .dt_bias = layer.dt_bias,
          .path = {},
          .stored = at.stored,
          .q = work.q,
          .v = work.v,
          .beta = work.beta,
          .type = pass.type,
          .rows = pass.rows,
          .in_stride = shape.in_width(),
          .pass_rows = at.pass_rows};
}

// The norm of each head of work.o and its gate, z in work.qkv.
void gated_norm(const Pass& pass, const LayerWeights& layer, const DeltaWork& work) {
  const DeltaShape shape = delta_shape(layer.spec.delta_net());
  delta_output({.shape = shape,
                .o = work.o,
                .z = pass.at(pass.work.qkv, shape.channels()),
                .weight = layer.head_norm,
                .out = pass.work.attention,
                .z_type = pass.type,
                .type = pass.type,
                .rows = pass.rows,
                .z_stride = shape.in_width(),
                .eps = pass.eps},
               *pass.stream);
}

}  // namespace

static_assert(kMaxStateKeyDim <= kMaxDeltaKeyDim && kMaxStateDim <= kMaxDeltaDim,
              "config_check lets sizes through that the ops refuse");

DeltaShape delta_shape(const DeltaNetSpec& spec) {
  return {
      .k_heads = spec.k_heads, .v_heads = spec.v_heads, .k_dim = spec.k_dim, .v_dim = spec.v_dim, .tiled = spec.tiled};
}

DeltaWork DeltaWork::of_pass(const DeltaShape& shape, int64_t rows, BumpAllocator& allocator) {
  DeltaWork work;
  work.q = allocator.take<float>(rows * shape.k_width());
  work.v = allocator.take<float>(rows * shape.v_width());
  work.beta = allocator.take<float>(rows * shape.v_heads);
  work.o = allocator.take<float>(rows * shape.v_width());
  return work;
}

DeltaWork DeltaWork::of_prefill(const DeltaShape& shape, int64_t rows, BumpAllocator& allocator) {
  DeltaWork work = of_pass(shape, rows, allocator);
  work.k = allocator.take<float>(rows * shape.k_width());
  work.g = allocator.take<float>(rows * shape.v_heads);
  work.scratch = allocator.take_bytes(delta_chunks_scratch_bytes(shape, rows));
  return work;
}

void delta_pass(const Pass& pass, const LayerWeights& layer, const DeltaState& at, const DeltaPath& path,
                const DeltaWork& work) {
  const TraceSpan span(*pass.stream, "recurrence");
  DeltaInputsParams in = inputs(pass, layer, at, work);
  in.path = path;
  delta_inputs(in, *pass.stream);
  delta_recurrence({.shape = in.shape,
                    .state = at.state,
                    .q = work.q,
                    .v = work.v,
                    .beta = work.beta,
                    .path = path,
                    .stored = at.stored,
                    .o = work.o,
                    .rows = pass.rows,
                    .pass_rows = at.pass_rows,
                    .ahead = at.ahead},
                   *pass.stream);
  gated_norm(pass, layer, work);
}

void delta_prefill(const Pass& pass, const LayerWeights& layer, const DeltaState& at, const DeltaWork& work) {
  const TraceSpan span(*pass.stream, "recurrence");
  DeltaInputsParams in = inputs(pass, layer, at, work);
  in.stored = {.m = nullptr, .k = work.k, .d = nullptr, .g = work.g};
  in.pass_rows = pass.rows;
  delta_inputs(in, *pass.stream);
  delta_chunks({.shape = in.shape,
                .q = work.q,
                .k = work.k,
                .v = work.v,
                .beta = work.beta,
                .g = work.g,
                .m = pass.work.qkv,
                .state = at.state,
                .conv = at.conv,
                .o = work.o,
                .scratch = work.scratch,
                .type = pass.type,
                .rows = pass.rows,
                .m_stride = in.in_stride},
               *pass.stream);
  gated_norm(pass, layer, work);
}

}  // namespace headrace
