// Searches over --vram for an engine whose plan of a run is one that few budgets have: shared by tests of the engine.
// One thread at a time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "runtime/engine/engine.h"

namespace headrace::testing {

enum class Room { kTooLittle, kWanted, kTooMuch };

// `room_of`: of a plan; a run that does not fit has too little. Sets options->device.vram_bytes to the engine's. Null:
// none was found. What a GPU's driver takes differs by some MiB from engine to engine, so the found engine is the one
// that was judged, and a search that ends between two engines of different shares begins again around that place.
inline std::unique_ptr<Engine> engine_with_room(EngineOptions* options, int64_t prompt_tokens,
                                                const GenerateOptions& run,
                                                const std::function<Room(const MemoryPlan&)>& room_of,
                                                const std::function<std::unique_ptr<Engine>(const EngineOptions&)>&
                                                    open = std::make_unique<Engine, const EngineOptions&>) {
  options->weights_place = WeightsPlace::kDevice;  // else a run without room has weights in host memory
  uint64_t low = kMiB, high = 4096 * kMiB;
  for (int tries = 0; tries < 150; ++tries) {
    if (high - low <= 16 * kKiB) {
      low -= std::min(low - kMiB, 8 * kMiB);
      high += 8 * kMiB;
    }
    options->device.vram_bytes = low / 2 + high / 2;
    Room room = Room::kTooLittle;
    try {
      std::unique_ptr<Engine> engine = open(*options);
      room = room_of(engine->plan(prompt_tokens, run).memory);
      if (room == Room::kWanted) return engine;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDoesNotFit) throw;
    }
    (room == Room::kTooMuch ? high : low) = options->device.vram_bytes;
  }
  return nullptr;
}

}  // namespace headrace::testing
