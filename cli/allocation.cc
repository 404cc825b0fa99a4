// The program's operator new and delete, over mimalloc. Debian builds mimalloc as C, whose own operator new aborts when
// memory runs out. This one follows the standard: it calls the new-handler, if there is one, and throws std::bad_alloc.
// malloc and its relatives are mimalloc's because the program links its library first. Any thread.
//
// Libraries allocate in places that must not throw: a JSON value in its destructor, std::filesystem in its iterators.
// If memory runs out there, the process ends with the exit code and a line on stderr, not by a signal.
#include <mimalloc.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <string_view>

namespace {

constexpr int kDoesNotFit = 4;  // ExitCode::kDoesNotFit
std::atomic<bool> ran_out{false};
std::terminate_handler previous = nullptr;

[[noreturn]] void exit_without_memory() {
  constexpr std::string_view kMessage = "error: out of memory outside the budgets\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(kDoesNotFit);
}

[[noreturn]] void exit_where_memory_ran_out() {
  if (ran_out.load()) exit_without_memory();
  previous();  // does not return
  ::_exit(1);
}

// CUDA's registration of kernels allocates before main() and does not look at the result. So the first allocation, with
// which mimalloc maps 32 MiB, is made here, before the program's other initialisers. It is kept: freed, it might be
// unmapped.
[[gnu::constructor(101)]] void map_first_memory() {
  static void* first = nullptr;
  first = mi_malloc(1);
  if (first == nullptr) exit_without_memory();
}

[[maybe_unused]] const bool installed = [] {
  previous = std::set_terminate(exit_where_memory_ran_out);
  return true;
}();

template <typename Allocate>
void* allocate_or_throw(const Allocate& allocate) {
  for (;;) {
    if (void* const memory = allocate()) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) {
      ran_out = true;
      throw std::bad_alloc();
    }
    handler();
  }
}

void* allocate(std::size_t bytes) {
  return allocate_or_throw([=] { return mi_malloc(bytes); });
}
void* allocate(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw([=] { return mi_malloc_aligned(bytes, static_cast<std::size_t>(alignment)); });
}

template <typename... Alignment>
void* allocate_or_null(std::size_t bytes, Alignment... alignment) noexcept {
  try {
    return allocate(bytes, alignment...);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return allocate(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return allocate(bytes, alignment); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, alignment);
}

void operator delete(void* memory) noexcept { mi_free(memory); }
void operator delete[](void* memory) noexcept { mi_free(memory); }
void operator delete(void* memory, std::size_t) noexcept { mi_free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { mi_free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { mi_free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { mi_free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { mi_free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { mi_free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { mi_free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { mi_free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { mi_free(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { mi_free(memory); }
