#include "offload/device/budget.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"

namespace headrace {

MemoryBudget::Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryBudget::Reservation& MemoryBudget::Reservation::operator=(Reservation&& other) noexcept {
  Reservation taken(std::move(other));  // returns what this one held, on self-assignment too
  std::swap(budget_, taken.budget_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

MemoryBudget::Reservation::~Reservation() {
  if (budget_ == nullptr) return;
  budget_->count_own(-static_cast<int64_t>(bytes_));
  budget_->release(bytes_);
}

MemoryBudget::MemoryBudget(std::string flag, uint64_t limit_bytes, MemoryBudget* parent)
    : flag_(std::move(flag)), limit_bytes_(limit_bytes), parent_(parent) {}

// A reservation that outlives its budget would write to freed memory.
MemoryBudget::~MemoryBudget() { CHECK(used_bytes_ == 0, flag_, " goes away with ", used_bytes_, " bytes reserved"); }

MemoryBudget::Reservation MemoryBudget::reserve(uint64_t bytes, std::string_view what) {
  Refusal refusal;
  if (!try_add(bytes, &refusal)) {
    throw_error(ExitCode::kDoesNotFit, refusal.budget->flag_,
                str("needs ", format_bytes(bytes), " for ", what, ", ", format_bytes(refusal.free_bytes), " of ",
                    format_bytes(refusal.budget->limit_bytes_), " are free"),
                str("raise ", refusal.budget->flag_, ", or ask for less: a shorter context or a smaller model"));
  }
  count_own(static_cast<int64_t>(bytes));
  Reservation reservation;
  reservation.budget_ = this;
  reservation.bytes_ = bytes;
  return reservation;
}

bool MemoryBudget::try_add(uint64_t bytes, Refusal* refusal) {
  const MutexLock lock(mutex_);  // held while the parent is locked; always in this order
  const uint64_t free = limit_bytes_ - used_bytes_;
  if (bytes > free) {
    // The error names the tighter of the two; on a tie the parent, since raising the child alone would not help.
    const uint64_t parent_free = parent_ != nullptr ? parent_->free_bytes() : UINT64_MAX;
    *refusal = parent_free <= free ? Refusal{parent_, parent_free} : Refusal{this, free};
    return false;
  }
  if (parent_ != nullptr && !parent_->try_add(bytes, refusal)) return false;
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return true;
}

void MemoryBudget::release(uint64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  CHECK(bytes <= used_bytes_, flag_, ": ", bytes, " bytes given back, ", used_bytes_, " reserved");
  used_bytes_ -= bytes;
  if (parent_ != nullptr) parent_->release(bytes);
}

uint64_t MemoryBudget::used_bytes() const {
  const MutexLock lock(mutex_);
  return used_bytes_;
}

uint64_t MemoryBudget::peak_bytes() const {
  const MutexLock lock(mutex_);
  return peak_bytes_;
}

uint64_t MemoryBudget::own_peak_bytes() const {
  const MutexLock lock(mutex_);
  return own_peak_bytes_;
}

void MemoryBudget::count_own(int64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  own_used_bytes_ += static_cast<uint64_t>(bytes);
  own_peak_bytes_ = std::max(own_peak_bytes_, own_used_bytes_);
}

uint64_t MemoryBudget::free_bytes() const {
  const MutexLock lock(mutex_);
  const uint64_t free = limit_bytes_ - used_bytes_;
  return parent_ != nullptr ? std::min(free, parent_->free_bytes()) : free;
}

void MemoryBudget::reset_peak() {
  const MutexLock lock(mutex_);
  peak_bytes_ = used_bytes_;
  own_peak_bytes_ = own_used_bytes_;
}

}  // namespace headrace
