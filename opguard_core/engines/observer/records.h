// The records of all living storages: found by the address of the StorageImpl, walked in the order in which they were met. Not locked.
#pragma once

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace opguard {

// Record: what a storage's record is, an intrusive pointer.
template <class RecordRef>
class Records {
 public:
  using Address = c10::StorageImpl*;

  Records() : places_(kSmallest) {}

  // The record of an address, null if there is none. Cost: one place of a table of 16 bytes each, mostly.
  typename RecordRef::element_type* find(Address address) const {
    for (size_t at = home(address);; at = next(at)) {
      if (places_[at].address == address) return places_[at].record;
      if (places_[at].address == nullptr) return nullptr;
    }
  }

  // Of an address that has none.
  void add(Address address, RecordRef record) {
    if (2 * (records_.size() + 1) > places_.size()) grow();
    put(address, record.get());
    addresses_.push_back(address);
    records_.push_back(std::move(record));
  }

  size_t size() const { return records_.size(); }
  const std::vector<RecordRef>& all() const { return records_; }

  // Take out those whose address `is_gone` says, in the order in which they were met. Cost: one look at each address.
  template <class IsGone>
  std::vector<RecordRef> remove(IsGone is_gone) {
    std::vector<RecordRef> gone;
    size_t kept = 0;
    for (size_t at = 0; at < records_.size(); ++at) {
      if (at + kAhead < addresses_.size()) __builtin_prefetch(addresses_[at + kAhead]);
      if (is_gone(addresses_[at])) {
        erase(addresses_[at]);
        gone.push_back(std::move(records_[at]));
        continue;
      }
      if (kept != at) {
        addresses_[kept] = addresses_[at];
        records_[kept] = std::move(records_[at]);
      }
      ++kept;
    }
    addresses_.resize(kept);
    records_.resize(kept);
    return gone;
  }

  std::vector<RecordRef> take_all() {
    addresses_.clear();
    places_.assign(kSmallest, {});
    return std::exchange(records_, {});
  }

 private:
  static constexpr size_t kSmallest = 1 << 10, kAhead = 12;

  struct Place {
    Address address = nullptr;
    typename RecordRef::element_type* record = nullptr;
  };

  size_t home(Address address) const {
    return (reinterpret_cast<uintptr_t>(address) * uint64_t{0x9E3779B97F4A7C15}) >> 32 & (places_.size() - 1);
  }
  size_t next(size_t at) const { return (at + 1) & (places_.size() - 1); }

  void put(Address address, typename RecordRef::element_type* record) {
    size_t at = home(address);
    while (places_[at].address != nullptr) at = next(at);
    places_[at] = {address, record};
  }

  // Those behind it that this place kept from their home move up.
  void erase(Address address) {
    size_t hole = home(address);
    while (places_[hole].address != address) hole = next(hole);
    for (size_t at = next(hole); places_[at].address != nullptr; at = next(at)) {
      const size_t wanted = home(places_[at].address);
      const bool may_move = hole <= at ? wanted <= hole || wanted > at : wanted <= hole && wanted > at;
      if (!may_move) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = {};
  }

  void grow() {
    places_.assign(2 * places_.size(), {});
    for (size_t at = 0; at < records_.size(); ++at) put(addresses_[at], records_[at].get());
  }

  std::vector<Place> places_;
  std::vector<Address> addresses_;
  std::vector<RecordRef> records_;
};

}  // namespace opguard
