#include "offload/device/link_queue.h"

#include <algorithm>

#include "cache/base.h"

namespace headrace {

void LinkQueue::add(Source& source) {
  sources_.push_back(&source);
  pump();
}

void LinkQueue::remove(Source& source) { std::erase(sources_, &source); }

void LinkQueue::pump() {
  while (Source* const source = first()) source->fill();
}

// Null: nothing may be filled now.
LinkQueue::Source* LinkQueue::first() const {
  const Source* waits = nullptr;  // the first without room
  Source* first = nullptr;        // the first with room
  for (Source* const source : sources_) {
    if (!source->has_room()) {
      if (waits == nullptr || source->next() < waits->next()) waits = source;
    } else if (first == nullptr || source->next() < first->next()) {
      first = source;
    }
  }
  if (first != nullptr && waits != nullptr && waits->next() < first->next() && waits->next().pass <= pass_) {
    return nullptr;
  }
  return first;
}

}  // namespace headrace
