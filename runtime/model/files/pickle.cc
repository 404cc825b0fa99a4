// The opcodes are those of Python's pickletools, protocols 0 to 2.
#include "runtime/model/files/pickle.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {
namespace {

using Kind = PickleValue::Kind;

constexpr const char* kOrderedDict = "collections OrderedDict";
constexpr const char* kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr const char* kGlobals[] = {kOrderedDict,        kRebuildTensor,          "torch FloatStorage",
                                    "torch HalfStorage", "torch BFloat16Storage", "torch LongStorage",
                                    "torch BoolStorage"};

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  Pickle run() {
    while (step(static_cast<uint8_t>(take(1)[0])))
      ;
    if (stack_.size() != 1 || !marks_.empty()) refuse(str("ends with ", stack_.size(), " values on its stack"));
    pickle_.root = stack_.back();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw_error(ExitCode::kBadInput, source_, str("pickle: ", what, " (before byte ", position_, ")"));
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - position_) refuse(str("ends where ", count, " bytes should follow"));
    const std::string_view out = bytes_.substr(position_, count);
    position_ += count;
    return out;
  }
  template <typename T>
  T value() {
    T out;
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  std::string line() {
    const size_t end = bytes_.find('\n', position_);
    if (end == std::string_view::npos) refuse("ends within a name");
    const std::string_view text = take(end - position_);
    take(1);
    return std::string(text);
  }

  // One opcode; false at the end.
  bool step(uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const uint8_t version = value<uint8_t>(); version > 2)
          refuse(str("protocol ", int{version}, " is not read (2 is what PyTorch writes)"));
        return true;
      case '.':
        return false;
      case 'N':
        return push(Kind::kNone);
      case 0x88:
      case 0x89:
        return push(Kind::kBool, opcode == 0x88);
      case 'J':
        return push(Kind::kInt, value<int32_t>());
      case 'K':
        return push(Kind::kInt, value<uint8_t>());
      case 'M':
        return push(Kind::kInt, value<uint16_t>());
      case 0x8a:
        return push(Kind::kInt, long_integer());
      case 'X':
        return push_text(Kind::kString, std::string(take(value<uint32_t>())));
      case 'c':
        return push_global();
      case '}':
        return push(Kind::kDict);
      default:
        return step_on_stack(opcode);
    }
  }

  bool step_on_stack(uint8_t opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        return push_tuple({});
      case 't':
        return push_tuple(pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(pop(opcode - 0x84));
      case 'q':
        return remember(value<uint8_t>());
      case 'r':
        return remember(value<uint32_t>());
      case 'h':
        return recall(value<uint8_t>());
      case 'j':
        return recall(value<uint32_t>());
      case 's':
        return set_items(pop(2));
      case 'u':
        return set_items(pop_to_mark());
      case 'Q':
        return push_persistent();
      case 'R':
        return reduce();
      case 'b':
        return build();
      default: {
        char name[8];
        std::snprintf(name, sizeof name, "0x%02x", unsigned{opcode});
        refuse(str("opcode ", name, opcode > 0x20 && opcode < 0x7f ? str(" ('", static_cast<char>(opcode), "')") : "",
                   " is not one that a state_dict needs"));
      }
    }
  }

  bool push(Kind kind, int64_t number = 0) {
    pickle_.values.emplace_back();
    pickle_.values.back().kind = kind;
    pickle_.values.back().number = number;
    stack_.push_back(&pickle_.values.back());
    return true;
  }
  bool push_text(Kind kind, std::string text) {
    push(kind);
    stack_.back()->text = std::move(text);
    return true;
  }
  bool push_global() {
    const std::string module = line(), name = module + " " + line();
    if (std::find(std::begin(kGlobals), std::end(kGlobals), name) == std::end(kGlobals))
      refuse("asks for the global \"" + printable(name) + "\", which is not one of those that weights need");
    return push_text(Kind::kGlobal, name);
  }
  bool push_holder(Kind kind, std::vector<const PickleValue*> items) {
    push(kind);
    stack_.back()->items = std::move(items);
    return true;
  }
  bool push_tuple(const std::vector<PickleValue*>& items) {
    return push_holder(Kind::kTuple, {items.begin(), items.end()});
  }
  bool push_persistent() {
    const PickleValue* id = pop(1).front();
    if (id->kind != Kind::kTuple) refuse("a persistent id is not a tuple");
    return push_holder(Kind::kPersistent, {id});
  }

  // The last `count` values, which must have been pushed since the last mark.
  std::vector<PickleValue*> pop(size_t count) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count)
      refuse(str("takes ", count, " values off a stack that has fewer"));
    std::vector<PickleValue*> out(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return out;
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) refuse("looks for a mark that is not there");
    const size_t count = stack_.size() - marks_.back();
    std::vector<PickleValue*> out = pop(count);
    marks_.pop_back();
    return out;
  }
  PickleValue& top() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("looks at a stack that is empty");
    return *stack_.back();
  }

  bool remember(uint32_t index) {
    top();
    memo_[index] = stack_.back();
    return true;
  }
  bool recall(uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse(str("recalls value ", index, ", which it has not set"));
    stack_.push_back(found->second);
    return true;
  }

  bool set_items(const std::vector<PickleValue*>& items) {
    PickleValue& dict = top();
    if (dict.kind != Kind::kDict) refuse("sets items of a value that is not a dictionary");
    if (items.size() % 2 != 0) refuse("sets a key without a value");
    for (size_t i = 0; i < items.size(); i += 2) dict.dict.emplace_back(items[i], items[i + 1]);
    return true;
  }

  // Calls: OrderedDict() is an empty dictionary, _rebuild_tensor_v2(…) a tensor, still as its arguments.
  bool reduce() {
    const std::vector<PickleValue*> call = pop(2);
    if (call[0]->kind != Kind::kGlobal || call[1]->kind != Kind::kTuple)
      refuse("calls something that is not a function");
    if (call[0]->text == kOrderedDict && call[1]->items.empty()) return push(Kind::kDict);
    if (call[0]->text == kRebuildTensor) return push_holder(Kind::kTensor, {call[1]});
    refuse("calls \"" + call[0]->text + "\" in a way that weights do not need");
  }
  // A state_dict's attributes (_metadata: versions of modules) say nothing about its tensors.
  bool build() {
    pop(1);
    if (top().kind != Kind::kDict) refuse("gives attributes to a value that is not a dictionary");
    return true;
  }

  int64_t long_integer() {
    const uint8_t count = value<uint8_t>();
    if (count > 8) refuse(str("an integer of ", int{count}, " bytes"));
    const std::string_view digits = take(count);
    uint64_t out = 0;
    for (size_t i = 0; i < digits.size(); ++i) out |= uint64_t{static_cast<uint8_t>(digits[i])} << (8 * i);
    if (count > 0 && count < 8 && (digits.back() & 0x80) != 0) out |= ~uint64_t{0} << (8 * count);
    return static_cast<int64_t>(out);
  }

  std::string_view bytes_;
  const std::string& source_;
  uint64_t position_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, PickleValue*> memo_;
};

}  // namespace

Pickle parse_pickle(std::string_view bytes, const std::string& source) { return Machine(bytes, source).run(); }

}  // namespace headrace
