// A draft's weights, opened and checked against a target: an engine keeps them from run to run. Each run gets a new
// Draft. Thread: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/sample/op.h"
#include "offload/device/device.h"
#include "runtime/base/input_file.h"
#include "runtime/base/progress.h"
#include "runtime/base/sha256.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/window.h"
#include "runtime/model/rope_overrides.h"
#include "runtime/model/weights.h"
#include "runtime/speculation/policy/tree_policy.h"

namespace headrace {

class Tokenizer;

// The SHA-256 of a source's weights, which identifies a draft in saved prefixes.
using WeightsFingerprint = std::function<Digest(const TensorSource& source)>;

// kAuto: the block in the model's own file if it has one and no draft is named, else none; chosen_type() decides.
enum class SpecType { kNone, kEagle3, kLongSpec, kSimple, kNgram, kMtp, kAuto };
constexpr SpecType kSpecTypes[] = {SpecType::kNone,   SpecType::kEagle3, SpecType::kLongSpec,
                                   SpecType::kSimple, SpecType::kNgram,  SpecType::kMtp};  // but kAuto
const char* spec_type_name(SpecType type);  // the value of --spec-type: "draft-eagle3"

struct DraftOptions {
  SpecType type = SpecType::kNone;  // --spec-type
  bool look_up = false;             // --spec-type KIND,ngram-simple
  std::string model{};              // -md
  int64_t window = -1;              // --draft-window: rows a draft's query sees; 0: all, -1: the draft's own
  // --draft-cache; none: window
  std::optional<RetrievalShape> retrieval{};
  RopeOverrides rope{};             // --draft-rope-*
  std::optional<TreeShape> tree{};  // --tree; none: auto
  int64_t most_tokens = 0;          // --spec-draft-n-max: cuts a tree by score; 0: the tree's size
};

// The target of a draft; config and weights outlive the draft's model.
struct DraftTarget {
  const ModelConfig* config;
  const Weights* weights;
  const Tokenizer* tokenizer;  // null: unknown
};

// Options of a run for its draft.
struct DraftRun {
  int64_t prompt_tokens = 0, context_tokens = 0;
  int64_t most_prompt_tokens = 0;  // of the runs that share the KV cache; 0: this is the only one
  int64_t most_pending = 0;        // most tokens that a pass holds before a proposed tree
  int64_t pass_nodes = 0;          // nodes that a pass judges; 0: those and the tree
  SamplingSettings sampling{};
  std::optional<TreeLimits> tree_limits{};  // of each step; none: by --tree
  bool saves = false;                       // with saved prefixes: Draft::prompt_states() has whole segments
  bool earlier_answers = false;             // those of earlier runs may serve as text to look up in
  bool windowed = false;                    // attends to a window instead of all rows, for less memory
  bool operator==(const DraftRun&) const = default;
};

class DraftModel {
 public:
  virtual ~DraftModel() = default;
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // As Weights::load. Returns at once if there is nothing to load.
  virtual bool load(Progress* progress, const std::atomic<bool>* interrupt) = 0;
  virtual bool loaded() const = 0;
  virtual uint64_t staging_bytes() const { return 0; }  // pinned memory of load(); 0 once loaded
  virtual uint64_t weights_bytes() const = 0;
  virtual WeightDamage damage() const { return {}; }  // of its loaded weights, as in WeightStore
  virtual SpecType type() const = 0;
  virtual std::string name() const { return spec_type_name(type()); }  // for reports
  virtual TreeLimits tree() const = 0;                                 // the largest tree
  virtual bool tunes_trees() const = 0;                                // --tree auto: steps may use smaller trees
  // A tree is as large as what was found, the likeliest node first: a step may verify its first nodes alone.
  virtual bool finds_trees() const { return false; }
  // The states that a saved prefix must have so that the draft can start after it. Calls `fingerprint` at most once per
  // model, because that may read all of the draft's files.
  virtual DraftNeeds needs(const DraftRun&, const WeightsFingerprint&) const { return {}; }
  // Its weight files, stamped when they were opened; empty: it has none.
  virtual std::vector<FileStamp> files() const { return {}; }
  // Whether DraftRun::windowed, which is not set, would make a difference.
  virtual bool may_be_windowed(const DraftRun&) const { return false; }
  // What the draft of such a run attends to.
  virtual DraftWindow window(const DraftRun&) const { return {}; }
  virtual std::unique_ptr<Draft> start(const DraftRun& run) = 0;

 protected:
  DraftModel() = default;
};

// The openers of each kind, in its folder's model.cc, for open_draft(); `tree` is the largest.
std::unique_ptr<DraftModel> open_eagle3_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const DraftTarget& target);
std::unique_ptr<DraftModel> open_longspec_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                                const DraftTarget& target);
// A small language model with the target's vocabulary, token for token except for padding.
std::unique_ptr<DraftModel> open_simple_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const DraftTarget& target);
// REQUIRES: the target has an MTP block.
std::unique_ptr<DraftModel> open_mtp_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                           const DraftTarget& target);
std::unique_ptr<DraftModel> open_ngram_draft(const DraftOptions& options, Device& device);
// A draft with weights, and look-up beside it: their trees have as many nodes as the head's, and as many levels as the
// deeper of both.
std::unique_ptr<DraftModel> pair_with_look_up(std::unique_ptr<DraftModel> head, std::unique_ptr<DraftModel> look_up);

// A tree cannot rank more children than the draft has tokens. Throws Error that names `draft`.
void check_branches(const TreeShape& tree, int64_t vocab, const std::string& draft);

}  // namespace headrace
