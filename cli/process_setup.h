// Process settings made before anything else. Thread: one, before others start.
#pragma once

namespace headrace {

// Opens /dev/null for each closed descriptor of 0, 1 and 2, so that no file of this program gets that number and
// receives text or messages. Reading or writing there fails, as on a closed descriptor. False if this fails.
bool open_standard_descriptors();
// A write beyond a limit on file sizes (ulimit -f) then fails, as on a full disk, instead of ending the process.
void ignore_file_size_signal();

}  // namespace headrace
