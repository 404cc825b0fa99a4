// The program's allocator (cli/allocation.cc): mimalloc is in effect, for operator new and for malloc, and memory that
// is not to be had is std::bad_alloc and not the end of the program.
#include <gtest/gtest.h>
#include <mimalloc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace headrace {
namespace {

constexpr size_t kTooMuch = size_t{1} << 60;

TEST(Allocation, IsMimallocs) {
  const std::unique_ptr<int> one(new int(1));
  const std::vector<std::string> many(1000, std::string(100, 'x'));
  EXPECT_TRUE(mi_is_in_heap_region(one.get()));
  EXPECT_TRUE(mi_is_in_heap_region(many.data()));
  EXPECT_TRUE(mi_is_in_heap_region(many.back().data()));
  void* const from_c = std::malloc(100);
  EXPECT_TRUE(mi_is_in_heap_region(from_c));
  std::free(from_c);
  const int on_stack = 0;
  EXPECT_FALSE(mi_is_in_heap_region(&on_stack));
}

TEST(Allocation, WhatIsNotToBeHadThrows) {
  EXPECT_THROW(std::ignore = ::operator new(kTooMuch), std::bad_alloc);
  EXPECT_THROW(std::ignore = ::operator new[](kTooMuch), std::bad_alloc);
  EXPECT_THROW(std::ignore = ::operator new (kTooMuch, std::align_val_t{64}), std::bad_alloc);
  EXPECT_THROW(std::ignore = ::operator new[](kTooMuch, std::align_val_t{64}), std::bad_alloc);
  EXPECT_EQ(::operator new(kTooMuch, std::nothrow), nullptr);
  EXPECT_EQ(::operator new[](kTooMuch, std::nothrow), nullptr);
  EXPECT_EQ(::operator new (kTooMuch, std::align_val_t{64}, std::nothrow), nullptr);
  EXPECT_EQ(::operator new[](kTooMuch, std::align_val_t{64}, std::nothrow), nullptr);
}

TEST(AllocationDeathTest, WhereNothingMayBeThrownTheProcessEndsWithItsExitCode) {
  const auto allocate = []() noexcept { std::string().reserve(kTooMuch); };
  EXPECT_EXIT(allocate(), ::testing::ExitedWithCode(4), "error: out of memory");
}

TEST(Allocation, ThrowsInAThreadToo) {
  bool thrown = false;
  std::thread([&] {
    try {
      std::string().reserve(kTooMuch);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
  }).join();
  EXPECT_TRUE(thrown);
}

TEST(Allocation, EveryFormIsAlignedAndGoesBack) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{24}, size_t{4096}, size_t{5} << 20}) {
    for (const size_t alignment : {size_t{32}, size_t{64}, size_t{4096}}) {
      void* const memory = ::operator new (bytes, std::align_val_t{alignment});
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % alignment, 0u) << bytes;
      ::operator delete (memory, bytes, std::align_val_t{alignment});
    }
    void* const memory = ::operator new(bytes, std::nothrow);
    ASSERT_NE(memory, nullptr);
    ::operator delete(memory, bytes);
  }
}

int handler_calls = 0;

TEST(Allocation, AsksTheNewHandlerUntilItGivesUp) {
  handler_calls = 0;
  std::set_new_handler([] {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
  });
  EXPECT_THROW(std::ignore = ::operator new(kTooMuch), std::bad_alloc);
  EXPECT_EQ(handler_calls, 3);
  std::set_new_handler([] { throw std::bad_alloc(); });
  EXPECT_EQ(::operator new(kTooMuch, std::nothrow), nullptr);
  std::set_new_handler(nullptr);
}

}  // namespace
}  // namespace headrace
