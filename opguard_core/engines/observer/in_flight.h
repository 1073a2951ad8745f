// Which event is in flight on the calling thread, told to the launch shim (cuda/launch_shim.c) while an operator's own kernel runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace opguard {

// `opguard_shim_boundary`, or null where no shim watches.
using SetBoundary = uint64_t (*)(uint64_t);
inline std::atomic<SetBoundary> set_boundary{nullptr};

// While it lives, device work of this thread belongs to one event; then to the one before again. Cost: one load without a shim, 2 ns with it.
class InFlight {
 public:
  explicit InFlight(uint64_t seq) : tell_(set_boundary.load(std::memory_order_acquire)) {
    if (tell_ != nullptr) before_ = tell_(seq);
  }
  ~InFlight() {
    if (tell_ != nullptr) tell_(before_);
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  SetBoundary tell_;
  uint64_t before_ = 0;
};

}  // namespace opguard
