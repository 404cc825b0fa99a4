// A descriptor that becomes readable when something has happened. Any thread.
#pragma once

namespace headrace {

// Reads and writes of it never block. Throws Error(kDoesNotFit) if the process has no descriptor left.
int open_eventfd();

}  // namespace headrace
