// A GPU that this program was not built for. Reads the file system. Any thread.
#pragma once

#include <string>

namespace headrace {

// Of a program without CUDA on a machine whose `devices` ("/dev") has an NVIDIA GPU: that it is not used, and what to
// do. Else empty.
std::string unused_gpu(const std::string& devices);

}  // namespace headrace
