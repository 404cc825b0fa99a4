#include "runtime/server/eventfd.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "cache/base.h"

namespace headrace {

int open_eventfd() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) {
    throw_error(ExitCode::kDoesNotFit, "eventfd", std::strerror(errno), "Raise the limit of open files: ulimit -n");
  }
  return descriptor;
}

}  // namespace headrace
