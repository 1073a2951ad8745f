// Entries into Python from operators: each takes the GIL, and each is counted by its reason.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace opguard {

// How often Python was entered, by reason and by step.
class Entries {
 public:
  void count(const std::string& reason, int64_t window) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++by_reason_[reason];
    ++by_window_[window];
    if (by_window_.size() > kMaxWindows) by_window_.erase(by_window_.begin());
  }

  // {"total": ..., "by_reason": {...}, "by_step": {...}}: the last `kMaxWindows` steps.
  pybind11::dict report() const {
    namespace py = pybind11;
    std::map<std::string, uint64_t> reasons;
    std::map<int64_t, uint64_t> windows;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      reasons = by_reason_;
      windows = by_window_;
    }
    py::dict by_reason, by_step;
    uint64_t total = 0;
    for (const auto& [reason, count] : reasons) {
      by_reason[py::str(reason)] = count;
      total += count;
    }
    for (const auto& [window, count] : windows) by_step[py::str(std::to_string(window))] = count;
    py::dict found;
    found["total"] = total;
    found["by_reason"] = by_reason;
    found["by_step"] = by_step;
    return found;
  }

 private:
  static constexpr size_t kMaxWindows = 64;
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> by_reason_;
  std::map<int64_t, uint64_t> by_window_;
};

}  // namespace opguard
