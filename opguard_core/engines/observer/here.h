// What the calling thread is doing of ours, between operators. Python's `OutsideCalls` sets and asks the same.
#pragma once

#include <cstdint>

namespace opguard {

struct Here {
  bool busy = false;  // our own code works
  int64_t known = 0;  // calls that write nothing but what they say, see `OutsideCalls.know_addresses`
};
inline Here& here() {
  thread_local Here found;
  return found;
}

// While it lives, addresses that this thread asks for are for an observed call.
class KnownAddresses {
 public:
  KnownAddresses() { ++here().known; }
  ~KnownAddresses() { --here().known; }
  KnownAddresses(const KnownAddresses&) = delete;
  KnownAddresses& operator=(const KnownAddresses&) = delete;
};

}  // namespace opguard
