#include "offload/host/start_thread.h"

#include <pthread.h>

#include <new>
#include <system_error>

#include "cache/base.h"

namespace headrace {

void refuse_thread(const std::string& what) {
  try {
    throw;
  } catch (const std::system_error& error) {
    throw_error(ExitCode::kDoesNotFit, what, str("cannot be started: ", error.code().message()),
                "The system allows no more threads: raise the limit of processes (ulimit -u; in a container its limit "
                "of pids) or of memory (ulimit -v), or end other programs.");
  } catch (const std::bad_alloc&) {
    throw_error(ExitCode::kDoesNotFit, what, "cannot be started: no memory is left for it",
                "End other programs, or raise the limit of memory.");
  }
}

void set_thread_stacks() noexcept {
  static const bool set = [] {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    const bool done =
        pthread_attr_setstacksize(&attributes, kThreadStackBytes) == 0 && pthread_setattr_default_np(&attributes) == 0;
    pthread_attr_destroy(&attributes);
    return done;
  }();
  (void)set;  // if this failed, stacks have the size of RLIMIT_STACK
}

}  // namespace headrace
