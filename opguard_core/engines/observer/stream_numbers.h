// Numbers of device streams by the order of first use. Mirrors streams.py, which gives the numbers out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "rows.h"
#include "streams.h"

namespace opguard {

class Streams {
 public:
  // ask: number of (device, handle), from Python.
  Streams(Texts& texts, std::function<int64_t(int32_t, uintptr_t)> ask) : texts_(texts), ask_(std::move(ask)) {}

  // Number of the stream that an operator with these slots was given to, NO_TIME for null. Cost: some ns.
  int64_t of(const SlotRows& rows) {
    for (const SlotRow& row : rows) {
      if (row.device == CPU_DEVICE) continue;
      const int32_t index = index_of(row.device);
      if (index >= 0) return number(index, reinterpret_cast<uintptr_t>(current_cuda_stream(index)));
    }
    return NO_TIME;
  }

 private:
  // Of a device's text; -1 for one that is not NVIDIA's.
  int32_t index_of(Code device) {
    const auto at = static_cast<size_t>(device);
    if (at < indices_.size() && indices_[at].load(std::memory_order_relaxed) != 0) return indices_[at].load(std::memory_order_relaxed) - 2;
    const std::string& text = texts_.device.text(device);
    const int32_t index = text.rfind("cuda:", 0) == 0 ? std::stoi(text.substr(5)) : -1;
    if (at < indices_.size()) indices_[at].store(index + 2, std::memory_order_relaxed);
    return index;
  }

  int64_t number(int32_t device, uintptr_t handle) {
    struct Last {
      const Streams* streams = nullptr;
      int32_t device = 0;
      uintptr_t handle = 0;
      int64_t number = 0;
    };
    thread_local Last last;  // a thread rarely changes its stream; a session's streams are never freed
    if (last.streams == this && last.device == device && last.handle == handle) return last.number;
    last = {this, device, handle, known_number(device, handle)};
    return last.number;
  }

  int64_t known_number(int32_t device, uintptr_t handle) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto known = numbers_.find({device, handle});
      if (known != numbers_.end()) return known->second;
    }
    const int64_t made = ask_(device, handle);
    std::lock_guard<std::mutex> lock(mutex_);
    numbers_.emplace(std::pair{device, handle}, made);
    return made;
  }

  Texts& texts_;
  std::function<int64_t(int32_t, uintptr_t)> ask_;
  std::array<std::atomic<int32_t>, 64> indices_{};  // by code: the index and 2; 0 for not asked yet
  std::mutex mutex_;
  std::map<std::pair<int32_t, uintptr_t>, int64_t> numbers_;
};

}  // namespace opguard
