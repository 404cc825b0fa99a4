// Partial steps that read the full KV: they differ from full steps in their weights alone, of which they multiply
// substitutes. It has no memory. Thread: one at a time.
#pragma once

#include <span>

#include "runtime/kv/partial_rows.h"

namespace headrace {

class ExactRows : public PartialRows {
 public:
  explicit ExactRows(const KvCache& cache) : cache_(cache) {}

  void fill_layer(int64_t, int64_t, std::span<const KvSegment>, const ScoringQueries&, Stream&) override {}
  void finish_prefill(const KvCache&, Stream&) override { initialised_ = true; }
  void after_commit(const KvCache&, bool, Stream&) override {}
  bool initialised() const override { return initialised_; }
  DType k_type() const override { return cache_.shape().k_type; }
  DType v_type() const override { return cache_.shape().v_type; }
  std::span<const KvSegment> segments(int64_t, int64_t) const override { return {}; }
  bool exact() const override { return true; }

 private:
  const KvCache& cache_;
  bool initialised_ = false;
};

}  // namespace headrace
