// The output of --list-devices, and the engines of --devices. Thread: one.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "cli/console.h"
#include "runtime/commands/batch.h"
#include "runtime/engine/engine.h"

namespace headrace {

// One line per device: its --device value, its description, and why it cannot be used.
std::string format_devices(const std::vector<DeviceListing>& devices);

// Opens one engine for each of --devices, or for --device if --devices is empty. Prints notes about them.
std::deque<Engine> open_engines(const EngineOptions& options, const std::vector<DeviceOptions>& devices,
                                Console* console);
// "cuda:0 is lost with report.txt: REASON; the other devices continue", for a warning.
std::string format_lost(const DeviceOptions& device, const std::string& why, const std::string& document);
// "12 answered, 3 done before, 0 failed", with `answered` as the word, and what each of several devices did.
std::string format_batch(const BatchOutcome& outcome, const char* answered, const std::vector<DeviceOptions>& devices);

}  // namespace headrace
