#include "offload/start_thread.h"

#include "cache/base.h"

namespace headrace {

void refuse_thread(const std::string& what, const std::system_error& error) {
  throw_error(ExitCode::kDoesNotFit, what, str("cannot be started: ", error.code().message()),
              "The system gives no more threads: raise the limit of processes (ulimit -u; in a container its limit of "
              "pids), or end what else runs.");
}

}  // namespace headrace
