// Memory that runs out for a moment: this program's operator new fails when it is told to, at places all over the
// opening of an engine and its runs, in its threads too. Each time an exception comes out, nothing hangs or ends the
// program, and the next run has the text of an undisturbed one. Places where a library must not throw, such as a JSON
// value's destructor, end the process (cli/allocation.cc): tests/cli/limits_program_test.cc has those.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"

namespace {

std::atomic<int64_t> calls{0};
std::atomic<int64_t> fails_from{INT64_MAX}, fails_until{INT64_MAX};

void* allocate(std::size_t bytes, std::size_t alignment) {
  const int64_t call = calls.fetch_add(1);
  if (call >= fails_from.load() && call < fails_until.load()) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment = 1) {
  if (void* const memory = allocate(bytes == 0 ? 1 : bytes, alignment)) return memory;
  throw std::bad_alloc();
}

// Not inlined: the compiler takes free() behind an inlined operator delete for a mismatch with operator new.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, std::align_val_t a) { return allocate_or_throw(bytes, static_cast<size_t>(a)); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return allocate_or_throw(bytes, static_cast<size_t>(a)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes == 0 ? 1 : bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes == 0 ? 1 : bytes, 1); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace headrace {
namespace {

// The calls of operator new fail from one on, so many of them. The test's own come after it is gone.
class Failing {
 public:
  Failing(int64_t from, int64_t count) {
    fails_until = calls + from + count;
    fails_from = calls + from;
  }
  ~Failing() { fails_from = INT64_MAX; }
};

using testing::kSanitized;

class OutOfMemory : public ::testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.device = {.choice = DeviceChoice::kCpu, .host_mem_bytes = 64 * kMiB, .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.draft.type = SpecType::kNgram;
    options.kv = KvMode::kHost;
    options.ring.slots = 2;
    return options;
  }
  static GenerateOptions run() {
    GenerateOptions run{.max_tokens = 24, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = 8};
    return run;
  }
  // All that allocates: opening, a run that loads the weights, another one.
  std::vector<int32_t> work() const {
    Engine engine(options());
    engine.generate(ids_, run(), nullptr);
    return engine.generate(ids_, run(), nullptr).token_ids;
  }
  // Fails one call at each of some 80 places: at the begin, and behind the reading of JSON, whose values' destructors
  // allocate.
  void sweep() {
    const std::vector<int32_t> expected = work();
    int64_t before = calls;
    { const Engine engine(options()); }
    const int64_t opened = calls - before;
    before = calls;
    work();
    const int64_t total = calls - before;
    ASSERT_GT(total, opened + 1000);
    const int64_t places = kSanitized ? 15 : 80;
    int thrown = 0;
    for (int64_t place = 0; place < places; ++place) {
      try {
        const Failing failing(place < 20 ? place * 7 : opened + (total - opened) * place / places, 1);
        work();
      } catch (const std::bad_alloc&) {
        ++thrown;
      } catch (const Error& error) {  // of a thread that could not be started
        EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
        ++thrown;
      }
    }
    EXPECT_GT(thrown, places / 2);
    EXPECT_EQ(work(), expected);
  }

  const std::vector<int32_t> ids_ = testing::made_up_ids(700, 512);
};

TEST_F(OutOfMemory, OnceAnywhereIsAnException) { sweep(); }

// An engine that has met it goes on with the next prompt.
TEST_F(OutOfMemory, AnEngineGoesOn) {
  Engine engine(options());
  const std::vector<int32_t> expected = engine.generate(ids_, run(), nullptr).token_ids;
  const int64_t before = calls;
  engine.generate(ids_, run(), nullptr);
  const int64_t total = calls - before;
  int thrown = 0;
  for (int64_t place = 0; place < 40; ++place) {
    try {
      const Failing failing(total * place / 40, 3);
      engine.generate(ids_, run(), nullptr);
    } catch (const std::bad_alloc&) {
      ++thrown;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
      ++thrown;
    }
    if (place % 8 != 0) continue;
    EXPECT_EQ(engine.generate(ids_, run(), nullptr).token_ids, expected) << place;
  }
  EXPECT_GT(thrown, 10);
  EXPECT_EQ(engine.generate(ids_, run(), nullptr).token_ids, expected);
}

}  // namespace
}  // namespace headrace
