// What the program asks of the system before anything else. Thread: one, before there are others.
#pragma once

namespace headrace {

// Opens /dev/null where descriptor 0, 1 or 2 is closed, so that no file of this program gets its number and with it
// the text or the messages. Reading or writing there fails, as on a closed descriptor. False if it cannot.
bool open_standard_descriptors();
// A write beyond a limit on files' sizes (ulimit -f) is then an error, as on a full disk, and ends no process.
void ignore_file_size_signal();

}  // namespace headrace
