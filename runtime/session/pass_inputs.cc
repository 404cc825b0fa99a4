#include "runtime/session/pass_inputs.h"

#include <algorithm>

namespace headrace {
namespace {

void set_input(const SessionBuffers& buffers, const PassScope& scope, int64_t row, int32_t token, int64_t position) {
  const StepInputs& host = buffers.host_inputs();
  host.tokens[row] = token;
  host.positions[row] = static_cast<int32_t>(position);
  host.draw_positions[row] = static_cast<int32_t>(position + 1);
  if (scope.mode == StepMode::kPartial) {
    host.slots[row] = static_cast<int32_t>(scope.sequence.partial()->slot_of(position));
  }
}

// The part that `rows` rows use; the paths come last.
void upload(const SessionLayout& layout, const SessionBuffers& buffers, int64_t rows) {
  buffers.upload_inputs(buffers.step().path_offset +
                        static_cast<uint64_t>(rows * layout.path_stride()) * sizeof(int32_t));
}

}  // namespace

int64_t upload_tree(const SessionLayout& layout, const SessionBuffers& buffers, const PassScope& scope,
                    const Tree& tree) {
  const StepInputs& host = buffers.host_inputs();
  const int64_t rows = scope.sequence.rows(), stride = layout.path_stride();
  const int64_t first = rows + (scope.mode == StepMode::kPartial ? scope.sequence.pending_rows() : 0);
  int64_t deepest = first;
  for (int64_t i = 0; i < tree.size(); ++i) {
    const size_t node = static_cast<size_t>(i);
    const int64_t position = first + tree.depths[node];
    CHECK(position < layout.options().context_tokens && position - rows < kTailWindow && tree.depths[node] < stride,
          "position ", position);
    deepest = std::max(deepest, position);
    set_input(buffers, scope, i, tree.tokens[node], position);
    if (i > 0) {  // the parent's path, then the node itself
      std::copy_n(host.path + tree.parents[node] * stride, tree.depths[node], host.path + i * stride);
    }
    host.path[i * stride + tree.depths[node]] = static_cast<int32_t>(i);
  }
  *host.committed = static_cast<int32_t>(first);
  upload(layout, buffers, tree.size());
  return deepest;
}

int64_t upload_growth(const SessionLayout& layout, const SessionBuffers& buffers, const PassScope& scope,
                      const Tree& tree, int64_t first, int64_t rows) {
  const StepInputs& host = buffers.host_inputs();
  const int64_t committed = scope.sequence.rows(), stride = layout.path_stride();
  int64_t deepest = committed;
  for (int64_t i = 0; i < rows; ++i) {
    const size_t node = static_cast<size_t>(std::min(first + i, tree.size() - 1));
    const int64_t depth = tree.depths[node], position = committed + depth;
    CHECK(position < layout.options().context_tokens && depth < stride, "position ", position);
    deepest = std::max(deepest, position);
    set_input(buffers, scope, i, tree.tokens[node], position);
    host.path[i * stride + depth] = static_cast<int32_t>(first + i);
    int32_t ancestor = tree.parents[node];
    for (int64_t d = depth - 1; d >= 0; --d) {
      host.path[i * stride + d] = ancestor;
      ancestor = tree.parents[static_cast<size_t>(ancestor)];
    }
  }
  *host.committed = static_cast<int32_t>(committed);
  *host.first_row = static_cast<int32_t>(first);
  upload(layout, buffers, rows);
  return deepest;
}

}  // namespace headrace
