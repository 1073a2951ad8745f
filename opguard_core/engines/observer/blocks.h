// Memory of what one thread makes and another lets go of, many times in a step: events, their slots, digests, records of storages.
//
// The writing thread frees what operators have allocated. Given back to malloc that is its slow path on both sides: foreign frees go past
// the thread's cache into the arena that torch allocates from, and leave it in pieces. So blocks go round here, by sizes of powers of two.
// What has once been taken from the system is kept until the process ends: as much as was ever held at once, which the outbox bounds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace opguard {

class Blocks {
 public:
  // Cost: some ns for a size met before; no lock.
  static void* take(size_t num_bytes) {
    const size_t kind = kind_of(num_bytes);
    if (kind >= kKinds) return ::operator new(num_bytes);
    auto& mine = own().free[kind];
    if (mine == nullptr) mine = given_[kind].exchange(nullptr, std::memory_order_acquire);
    if (mine == nullptr) mine = fresh(kind);
    Free* const block = mine;
    mine = block->next;
    return block;
  }

  // Of any thread; `num_bytes` as it was taken.
  static void give(void* memory, size_t num_bytes) noexcept {
    const size_t kind = kind_of(num_bytes);
    if (kind >= kKinds) return ::operator delete(memory);
    auto* const block = static_cast<Free*>(memory);
    give_chain(kind, block, block);
  }

 private:
  struct Free {
    Free* next;
  };
  static constexpr size_t kSmallest = 64, kKinds = 13;  // up to 256 KiB
  static constexpr size_t kSlab = size_t{1} << 16;

  // Blocks that only this thread takes; back to everybody when it ends.
  struct Own {
    std::array<Free*, kKinds> free{};
    ~Own() {
      for (size_t kind = 0; kind < kKinds; ++kind) {
        Free* const first = free[kind];
        if (first == nullptr) continue;
        Free* last = first;
        while (last->next != nullptr) last = last->next;
        free[kind] = nullptr;
        give_chain(kind, first, last);
      }
    }
  };

  static Own& own() {
    thread_local Own mine;
    return mine;
  }

  static size_t kind_of(size_t num_bytes) {
    return num_bytes <= kSmallest ? 0 : static_cast<size_t>(64 - __builtin_clzll(num_bytes - 1)) - 6;
  }

  // All is taken at once, so nothing can come back in between.
  static void give_chain(size_t kind, Free* first, Free* last) noexcept {
    Free* head = given_[kind].load(std::memory_order_relaxed);
    do {
      last->next = head;
    } while (!given_[kind].compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
  }

  static Free* fresh(size_t kind) {
    const size_t size = kSmallest << kind, total = size > kSlab ? size : kSlab;
    auto* const memory = static_cast<char*>(::operator new(total, std::align_val_t(kSmallest)));
    Free* first = nullptr;
    for (size_t at = total; at >= size; at -= size) first = new (memory + at - size) Free{first};
    return first;
  }

  static inline std::array<std::atomic<Free*>, kKinds> given_{};
};

// For containers and shared objects.
template <class T>
struct BlockAllocator {
  using value_type = T;
  BlockAllocator() = default;
  template <class Other>
  BlockAllocator(const BlockAllocator<Other>&) noexcept {}  // NOLINT: as the standard wants it
  T* allocate(size_t count) { return static_cast<T*>(Blocks::take(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) noexcept { Blocks::give(memory, count * sizeof(T)); }
  template <class Other>
  bool operator==(const BlockAllocator<Other>&) const noexcept { return true; }
  template <class Other>
  bool operator!=(const BlockAllocator<Other>&) const noexcept { return false; }
};

// Base of classes whose objects go through `new` and `delete`.
struct InBlocks {
  static void* operator new(size_t num_bytes) { return Blocks::take(num_bytes); }
  static void operator delete(void* memory, size_t num_bytes) noexcept { Blocks::give(memory, num_bytes); }
};

}  // namespace opguard
