// How the memory of one geometry is read: the plan of the compiled CPU twin, worked out once. Mirrors fingerprint/cpu.Reader.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cells.h"

namespace opguard {

inline constexpr int kMaxDims = 24;

// native.Plan and `Plan` of fingerprint/dense.h, field by field; strides in bytes.
struct Plan {
  int32_t widening = 0, item_bytes = 0, component_bytes = 0, num_dims = 0;
  int64_t numel = 1;
  uint64_t flip[2] = {0, 0};
  const uint32_t* table = nullptr;
  int64_t shape[kMaxDims] = {}, strides[kMaxDims] = {};
};
static_assert(kMaxDims == OG_MAX_DIMS, "the plans of host and device are made by the same code");

// dtypes.ElementType, with the table of an 8-bit float for the host, and its number for a device (probe_api.h).
struct Element {
  int32_t widening, device_widening, item_bytes, num_components;
  const uint32_t* table;
};

// The compiled CPU twin and what it has to be told of dtypes; handed over from Python once per process, then constant.
class Twin {
 public:
  using Function = void (*)(const Plan*, uint64_t*);

  // address: `opguard_fingerprint` of fingerprint.c, 0 if there is none. plan_bytes: what it takes a plan to be.
  void set_function(uintptr_t address, size_t plan_bytes) {
    if (address != 0 && plan_bytes != sizeof(Plan)) throw std::invalid_argument("the compiled fingerprint lays its plan out differently");
    function_ = reinterpret_cast<Function>(address);
  }

  // table: 256 words, or empty.
  void add(const std::string& name, Element element, const std::vector<uint32_t>& table) {
    if (!table.empty()) {
      if (table.size() != 256) throw std::invalid_argument("a table of an 8-bit float has 256 words");
      tables_.push_back(std::make_unique<std::array<uint32_t, 256>>());
      std::copy(table.begin(), table.end(), tables_.back()->begin());
      element.table = tables_.back()->data();
    }
    elements_[name] = element;
  }

  // What its elements are; null for a dtype that nobody has told us.
  const Element* element(const std::string& dtype) const {
    auto found = elements_.find(dtype);
    return found == elements_.end() ? nullptr : &found->second;
  }

  Function function() const { return function_; }

 private:
  Function function_ = nullptr;
  std::unordered_map<std::string, Element> elements_;
  std::vector<std::unique_ptr<std::array<uint32_t, 256>>> tables_;
};

// layout.merge_dimensions: drop dimensions of length one and join neighbours that are dense in one another. No size may be zero.
inline std::pair<at::DimVector, at::DimVector> merge_dimensions(at::IntArrayRef sizes, at::IntArrayRef steps) {
  at::DimVector lengths, strides;
  for (size_t index = 0; index < sizes.size(); ++index) {
    if (sizes[index] == 1) continue;
    if (!strides.empty() && strides.back() == steps[index] * sizes[index]) {
      lengths.back() *= sizes[index];
      strides.back() = steps[index];
    } else {
      lengths.push_back(sizes[index]);
      strides.push_back(steps[index]);
    }
  }
  return {lengths, strides};
}

// Everything about one (dtype, shape, strides, signs) that does not depend on the address.
struct Reader {
  Plan plan;
  int32_t device_widening = 0;
  int64_t extent_bytes = 0;  // from the address to one past the last byte read; 0 if there is nothing to read
  bool fits = false;         // whether the twin can do it: a dtype and a number of dimensions that it knows

  // The 16-byte pattern that turns stored signs into logical ones: probe.tensor._sign_flips.
  static std::pair<uint64_t, uint64_t> sign_flips(const Element& element, bool conjugate, bool negative) {
    const int bits = 8 * element.item_bytes / element.num_components;
    uint64_t pattern[2] = {0, 0};
    for (int component = 0; component < 128 / bits; ++component) {
      const bool imaginary = component % element.num_components == 1;
      if (negative == (conjugate && imaginary)) continue;
      const int bit = bits * (component + 1) - 1;
      pattern[bit / 64] |= uint64_t{1} << (bit % 64);
    }
    return {pattern[0], pattern[1]};
  }

  // element: null if it is not known.
  Reader(const Element* element, at::IntArrayRef sizes, at::IntArrayRef steps, bool conjugate, bool negative) {
    if (element == nullptr) return;
    plan.widening = element->widening;
    plan.item_bytes = element->item_bytes;
    plan.component_bytes = element->item_bytes / element->num_components;
    if (conjugate || negative) std::tie(plan.flip[0], plan.flip[1]) = sign_flips(*element, conjugate, negative);
    plan.table = element->table;
    device_widening = element->device_widening;
    fits = merge(sizes, steps);
  }

  // The array whose element (0, ..., 0) is at `address`, for a device to read.
  og_view view(uint64_t address) const {
    og_view view;
    view.data = address;
    view.numel = plan.numel;
    view.widening = device_widening;
    view.item_bytes = plan.item_bytes;
    view.component_bytes = plan.component_bytes;
    view.num_dims = plan.num_dims;
    std::copy(plan.flip, plan.flip + 2, view.flip);
    std::copy(plan.shape, plan.shape + plan.num_dims, view.sizes);
    std::copy(plan.strides, plan.strides + plan.num_dims, view.strides);
    return view;
  }

  // Digest the array whose element (0, ..., 0) is at `address`; `function` of a twin. Cost: 0.3 us for a small one, then memory speed.
  Digests read(Twin::Function function, const void* address) const {
    uint64_t exchange[6] = {reinterpret_cast<uintptr_t>(address), 0, 0, 0, 0, 0};
    function(&plan, exchange);
    return {exchange[0], exchange[1], exchange[2], static_cast<uint32_t>(exchange[3]), exchange[4] != 0, exchange[5]};
  }

 private:
  // The shortest walk over an array; false if that has more dimensions than the twin knows.
  bool merge(at::IntArrayRef sizes, at::IntArrayRef steps) {
    for (const int64_t size : sizes) {
      if (size == 0) {
        plan.num_dims = 1;
        plan.numel = 0;
        plan.strides[0] = plan.item_bytes;
        return true;
      }
    }
    const auto [lengths, strides] = merge_dimensions(sizes, steps);
    if (lengths.size() > static_cast<size_t>(kMaxDims)) return false;
    int64_t last = 0;
    for (size_t index = 0; index < lengths.size(); ++index) {
      last += (lengths[index] - 1) * strides[index];
      plan.numel *= lengths[index];
      plan.shape[index] = lengths[index];
      plan.strides[index] = strides[index] * plan.item_bytes;
    }
    plan.num_dims = static_cast<int>(lengths.size());
    extent_bytes = (last + 1) * plan.item_bytes;
    return true;
  }
};

}  // namespace opguard
