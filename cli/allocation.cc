// The program's operator new and delete, over mimalloc. Debian builds mimalloc as C: its own operator new aborts where
// no memory is left. This one does what the standard says: it calls the new-handler, if there is one, and throws
// std::bad_alloc. malloc and its kin are mimalloc's because the program links its library first. Any thread.
#include <mimalloc.h>

#include <cstddef>
#include <new>

namespace {

template <typename Allocate>
void* allocate_or_throw(const Allocate& allocate) {
  for (;;) {
    if (void* const memory = allocate()) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
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
