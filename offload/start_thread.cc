#include "offload/start_thread.h"

#include <new>
#include <system_error>

#include "cache/base.h"

namespace headrace {

void refuse_thread(const std::string& what) {
  try {
    throw;
  } catch (const std::system_error& error) {
    throw_error(ExitCode::kDoesNotFit, what, str("cannot be started: ", error.code().message()),
                "The system gives no more threads: raise the limit of processes (ulimit -u; in a container its limit "
                "of pids), or end what else runs.");
  } catch (const std::bad_alloc&) {
    throw_error(ExitCode::kDoesNotFit, what, "cannot be started: no memory is left for it",
                "End what else runs, or raise the limit of memory.");
  }
}

}  // namespace headrace
