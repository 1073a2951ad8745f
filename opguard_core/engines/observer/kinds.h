// Kinds of tensor: which are plain memory, and how that memory can be read. Mirrors kinds.is_plain and probe.tensor.kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string_view>
#include <utility>

namespace opguard {

// How the content of a tensor is read.
enum class Access : uint8_t {
  host,    // plain memory of this process
  cuda,    // plain memory of an NVIDIA device
  python,  // plain memory that Python's `fingerprint` has to look at: another device, or keys that we do not know
  apart,   // not plain: Python takes it apart (`parts_of`)
};

struct Kind {
  Access access = Access::apart;
  bool conjugate = false, negative = false;  // a view whose stored signs are not the logical ones

  // Whether the logical bytes are those in memory: a lazy conjugate or negative view shares its geometry with what it shows.
  bool as_stored() const { return !conjugate && !negative; }
};

namespace detail {

inline bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> starts) {
  for (const std::string_view start : starts) {
    if (name.substr(0, start.size()) == start) return true;
  }
  return false;
}

// By the names of the keys, as Python does it: what a later torch adds is judged alike on both sides.
inline Kind judge(c10::DispatchKeySet keys) {
  Kind kind;
  bool plain = true;
  int others = 0;
  std::string_view backend;
  for (const c10::DispatchKey key : keys) {
    const std::string_view name = c10::toString(key);
    if (starts_with_any(name, {"ADInplaceOrView", "Autograd", "Autocast", "PythonTLSSnapshot"})) continue;
    if (starts_with_any(name, {"BatchedNestedTensor", "FuncTorch", "Functionalize", "Meta", "Mkldnn", "Nested", "Python", "Quantized",
                               "Sparse", "ZeroTensor", "Batched"})) {
      plain = false;
    }
    if (name == "Conjugate") {
      kind.conjugate = true;
    } else if (name == "Negative") {
      kind.negative = true;
    } else {
      ++others;
      backend = name;
    }
  }
  if (!plain || (others == 0 && !kind.conjugate && !kind.negative)) return kind;
  kind.access = others != 1 ? Access::python : backend == "CPU" ? Access::host : backend == "CUDA" ? Access::cuda : Access::python;
  return kind;
}

}  // namespace detail

namespace detail {

// Answers by key set, appended to and never changed: read without a lock. A program meets a handful.
struct KnownKinds {
  static constexpr size_t kMost = 64;  // more are judged anew each time
  std::array<std::pair<uint64_t, Kind>, kMost> entries;
  std::atomic<size_t> count{0};
  std::mutex mutex;
};

inline KnownKinds& known_kinds() {
  static KnownKinds known;
  return known;
}

}  // namespace detail

// What a tensor is, by its dispatch keys. Cost: a few ns for keys seen before. Never throws, calls no operator, needs no GIL.
inline Kind kind_of(const at::Tensor& tensor) {
  detail::KnownKinds& known = detail::known_kinds();
  const c10::DispatchKeySet keys = tensor.unsafeGetTensorImpl()->key_set();
  const size_t count = known.count.load(std::memory_order_acquire);
  for (size_t index = 0; index < count; ++index) {
    if (known.entries[index].first == keys.raw_repr()) return known.entries[index].second;
  }
  const Kind kind = detail::judge(keys);
  std::lock_guard<std::mutex> lock(known.mutex);
  const size_t now = known.count.load(std::memory_order_relaxed);
  if (now == count && now < detail::KnownKinds::kMost) {
    known.entries[now] = {keys.raw_repr(), kind};
    known.count.store(now + 1, std::memory_order_release);
  }
  return kind;
}

// Whether a tensor is strided memory of its own.
inline bool is_plain(const at::Tensor& tensor) { return kind_of(tensor).access != Access::apart; }

}  // namespace opguard
