// Who owns which bytes: storages by serial number, what was last written where, what nobody has written yet. Mirrors storages.py.
//
// A storage is known by the address of its StorageImpl, held weakly: the memory of the tensor is freed as always, only the small
// header waits until the record is polled. Any thread; no lock of this file is held while Python runs or a tensor is freed.
#pragma once

#include <ATen/MapAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>
#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cells.h"
#include "geometry.h"
#include "records.h"
#include "texts.h"
#include "unwritten.h"

namespace opguard {

inline constexpr size_t kCarriedViews = 64;   // digests kept per storage before all are forgotten
inline constexpr int64_t kNoVersion = -1;     // a version counter that is None

// One storage of this rank.
class Storage : public c10::intrusive_ptr_target, public InBlocks {
 public:
  // What a view was last written as, or has been read as since.
  struct Written {
    int64_t offset;  // bytes
    GeometryRef geometry;
    int64_t version;
    Content content;
    bool expected = false;  // `version` is one that autograd was yet to make; some operators never do (torch's fused optimizers)

    // Whether a counter that reads so has not moved since: it never goes back, so one below what was expected was not raised.
    bool holds(int64_t now) const { return version == now || (expected && now != kNoVersion && version == now + 1); }
  };
  using Writes = c10::SmallVector<Written, 1>;  // most are written through one view only

  Storage(uint32_t serial, c10::StorageImpl* address, int64_t nbytes, int64_t born_seq, std::shared_ptr<Texts> texts)
      : serial(serial), address(address), born_seq(born_seq), texts(std::move(texts)), nbytes_(nbytes) {
    c10::raw::intrusive_ptr::make_weak(address);
  }

  ~Storage() override {
    c10::raw::weak_intrusive_ptr::decref(address);
    PyObject* left = pending_.exchange(nullptr);
    if (left == nullptr || !Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire gil;
    Py_DECREF(left);
  }

  const uint32_t serial;             // never reused
  c10::StorageImpl* const address;   // weakly held: valid as long as this record, expired or not
  const int64_t born_seq;            // event that first showed it
  const std::shared_ptr<Texts> texts;
  std::atomic<bool> foreign{false};   // bytes can change unseen (numpy, files, other processes share them): digests are never carried
  std::atomic<bool> gradient{false};  // a gradient, or computed from gradients outside the graph since the last update
  std::atomic<int64_t> tick{0};       // when it was last seen written, see `next_tick`; 0 for never

  // A moment: storages with a higher `tick` have been seen written since.
  static int64_t next_tick() {
    static std::atomic<int64_t> ticks{0};
    return ticks.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  // Text of the slots' column "name": "param:layer.weight", "grad:...", "buffer:...", "optim:..." or that of "".
  Code name() const { return name_.load(std::memory_order_relaxed); }
  bool named() const { return name() != EMPTY_TEXT; }
  void set_name(Code name) { name_.store(name, std::memory_order_relaxed); }

  int64_t nbytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return nbytes_;
  }

  // Whether a collective whose result will land here has not been observed yet. One load.
  bool pending() const { return pending_.load(std::memory_order_relaxed) != nullptr; }
  // That collective: a Python object, so both with the GIL.
  pybind11::object pending_object() const {
    PyObject* found = pending_.load();
    return pybind11::reinterpret_borrow<pybind11::object>(found == nullptr ? Py_None : found);
  }
  void set_pending(pybind11::object pending) {
    PyObject* left = pending_.exchange(pending.is_none() ? nullptr : pending.release().ptr());
    Py_XDECREF(left);
  }

  // Mark all bytes as not written yet.
  void never_written() {
    Writes forgotten;  // freed after the lock, here and below
    std::lock_guard<std::mutex> lock(mutex_);
    unwritten_.all(nbytes_);
    forgotten.swap(written_);
  }

  // Account for `resize_`: the part beyond the old end is unwritten.
  void grew(int64_t nbytes) {
    Writes forgotten;
    std::lock_guard<std::mutex> lock(mutex_);
    unwritten_.grew(nbytes_, nbytes);
    nbytes_ = nbytes;
    forgotten.swap(written_);
  }

  // Whether every byte of this view has been written.
  bool is_written(int64_t offset, const Geometry& geometry) const {
    if (unwritten_.empty()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    return unwritten_.is_written(offset, geometry);
  }

  // Record what a view was read as, if nobody was seen writing here since `before`, the `tick` when reading began; nothing where so
  // many are known already.
  void saw(int64_t offset, const GeometryRef& geometry, int64_t version, const Content& content, int64_t before) {
    Writes forgotten;
    std::lock_guard<std::mutex> lock(mutex_);
    if (tick.load(std::memory_order_relaxed) != before || written_.size() > kCarriedViews) return;
    put({offset, geometry, version, content}, forgotten);
  }

  // Record one observed write of a view; `content` null when it was not read, `expected` as in `Written`.
  void wrote(int64_t offset, const GeometryRef& geometry, int64_t version, const Content* content, bool expected = false) {
    tick.store(next_tick(), std::memory_order_relaxed);
    Writes forgotten;
    std::lock_guard<std::mutex> lock(mutex_);
    if (written_.size() > kCarriedViews) {
      forgotten.swap(written_);
    } else if (!written_.empty()) {
      forget_overlapping(offset, geometry->span, forgotten);
    }
    if (content != nullptr) put({offset, geometry, version, *content, expected}, forgotten);
    if (!unwritten_.empty()) unwritten_.fill(offset, *geometry, nbytes_);
  }

  // Digests of this view, or of one with the same logical bytes, if nobody is known to have written there since they were taken.
  bool carried(int64_t offset, const Geometry& geometry, int64_t version, Content& content) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const Written* known = find(offset, geometry);
    if (known == nullptr || !known->holds(version)) return false;
    content = known->content;
    return true;
  }

  void forget_written() {
    Writes forgotten;
    std::lock_guard<std::mutex> lock(mutex_);
    forgotten.swap(written_);
  }

  // Copies for Python.
  std::vector<Written> written() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return {written_.begin(), written_.end()};
  }
  std::vector<std::pair<int64_t, int64_t>> gaps() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return unwritten_.gaps();
  }

 private:
  void forget_overlapping(int64_t low, int64_t span, Writes& forgotten) {
    const int64_t high = low + span;
    size_t kept = 0;
    for (size_t index = 0; index < written_.size(); ++index) {
      Written& known = written_[index];
      if (known.offset < high && low < known.offset + known.geometry->span) {
        forgotten.push_back(std::move(known));
      } else {
        if (kept != index) written_[kept] = std::move(known);
        ++kept;
      }
    }
    while (written_.size() > kept) written_.pop_back();
  }

  void put(Written&& seen, Writes& forgotten) {
    Written* same = find(seen.offset, *seen.geometry);  // an empty view overlaps nothing, so it may be there
    if (same == nullptr) {
      written_.push_back(std::move(seen));
    } else {
      forgotten.push_back(std::move(*same));
      *same = std::move(seen);
    }
  }

  Written* find(int64_t offset, const Geometry& geometry) {
    for (Written& known : written_) {
      if (known.offset == offset && known.geometry->base() == geometry.base()) return &known;
    }
    return nullptr;
  }
  const Written* find(int64_t offset, const Geometry& geometry) const { return const_cast<Storage*>(this)->find(offset, geometry); }

  std::atomic<Code> name_{EMPTY_TEXT};
  std::atomic<PyObject*> pending_{nullptr};
  mutable std::mutex mutex_;
  int64_t nbytes_;
  Unwritten unwritten_;
  Writes written_;  // since the last overlapping write
};

using StorageRef = c10::intrusive_ptr<Storage>;

struct Lifetime {
  uint32_t storage;
  int64_t nbytes, born_seq, dead_seq;  // dead_seq -1: alive at the last look
};

// Whether bytes can change without any operator: memory that is not torch's own, or that other processes map. On an NVIDIA device
// torch calls every storage shared; one that came from another process is not resizable, and that is what counts.
inline bool is_foreign(const c10::StorageImpl& storage) {
  if (!storage.resizable()) return true;
  if (storage.device_type() == at::kCUDA) return false;
  using Managed = void* (*)(const c10::DataPtr&);
  // Source: torch/lib/libshm.so; not linked to, because nothing else of it is needed.
  static const auto managed = [] {
    void* library = dlopen("libshm.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr : reinterpret_cast<Managed>(dlsym(library, "_ZN21THManagedMapAllocator11fromDataPtrERKN3c107DataPtrE"));
  }();
  const c10::DataPtr& data = storage.data_ptr();
  return at::MapAllocator::fromDataPtr(data) != nullptr || (managed != nullptr && managed(data) != nullptr);
}

// All storages this rank has met.
class Storages {
 public:
  // next_seq: number the next event will get; called without locks.
  Storages(std::function<int64_t()> next_seq, std::shared_ptr<Texts> texts) : texts_(std::move(texts)), next_seq_(std::move(next_seq)) {}

  Storages(const Storages&) = delete;
  Storages& operator=(const Storages&) = delete;

  // The record of a plain tensor's storage; valid while the caller holds the tensor. Cost: about 0.05 us once known.
  Storage* of(const at::Tensor& tensor, int64_t seq) {
    c10::StorageImpl* address = tensor.storage().unsafeGetStorageImpl();
    {
      std::lock_guard<std::mutex> lock(*mutex_);
      if (Storage* const found = records_.find(address)) return found;
    }
    return meet(address, seq);
  }

  // As `of`, null for a storage never seen and for a tensor that has none.
  Storage* known(const at::Tensor& tensor) const { return tensor.has_storage() ? known(tensor.storage().unsafeGetStorageImpl()) : nullptr; }
  Storage* known(c10::StorageImpl* address) const {
    std::lock_guard<std::mutex> lock(*mutex_);
    return records_.find(address);
  }

  // A storage has another size, set on itself: what it grew by, from nothing all of it, is unwritten.
  void resized(c10::StorageImpl* address) const {
    if (Storage* record = known(address)) record->grew(static_cast<int64_t>(address->nbytes()));
  }

  // A storage is in memory that other processes can map, from now on.
  void shared(c10::StorageImpl* address) const {
    if (Storage* record = known(address)) record->foreign = true;
  }

  // Number the next event will get: the birth of a storage first met between events.
  int64_t seq() const { return next_seq_(); }

  size_t size() const {
    std::lock_guard<std::mutex> lock(*mutex_);
    return records_.size();
  }

  // Forget freed storages and return what is known of each, oldest first. Cost: some ns a living storage.
  std::vector<Lifetime> poll(int64_t seq) {
    std::vector<StorageRef> gone;
    {
      std::lock_guard<std::mutex> lock(*mutex_);
      looked_at_ = seq;
      gone = records_.remove(&Storages::expired);
    }
    std::vector<Lifetime> lifetimes;
    lifetimes.reserve(gone.size());
    for (const StorageRef& record : gone) {
      lifetimes.push_back({record->serial, record->nbytes(), record->born_seq, seq});
    }
    return lifetimes;
  }

  // Records that have not been found freed, oldest first.
  std::vector<StorageRef> living() const {
    std::lock_guard<std::mutex> lock(*mutex_);
    return records_.all();
  }

  // Memory may have been written unseen, and nobody says where: no digest from before is carried.
  void forget_written() {
    for (const StorageRef& record : living()) record->forget_written();
  }

  // Carry nothing of what nobody was seen writing since a tick, but for gradients.
  void forget_older(int64_t since) {
    for (const StorageRef& record : living()) {
      if (record->tick.load(std::memory_order_relaxed) < since && !record->gradient.load(std::memory_order_relaxed)) record->forget_written();
    }
  }

  // The update has used them up: no storage is a gradient any more.
  void forget_gradients() {
    std::lock_guard<std::mutex> lock(*mutex_);
    for (const StorageRef& record : records_.all()) {
      if (record->gradient.load(std::memory_order_relaxed)) record->gradient.store(false, std::memory_order_relaxed);
    }
  }

  // Return every storage not yet reported and let go of all weak references. What was alive at the last look counts as alive at the
  // end: a model that lives in a function is freed when that function returns, just before exit. Only what came and went since that
  // look is dead.
  std::vector<Lifetime> close() {
    const int64_t now = seq();
    std::vector<StorageRef> records;
    {
      std::lock_guard<std::mutex> lock(*mutex_);
      records = records_.take_all();
    }
    std::vector<Lifetime> lifetimes;
    for (const StorageRef& record : records) {
      const bool dead = record->born_seq > looked_at_ && expired(record->address);
      lifetimes.push_back({record->serial, record->nbytes(), record->born_seq, dead ? now : -1});
    }
    // An operator of another thread may still be looking at one.
    std::lock_guard<std::mutex> lock(*mutex_);
    closed_.insert(closed_.end(), records.begin(), records.end());
    return lifetimes;
  }

  // After a fork, in the child: own no lock that a vanished thread may hold.
  void new_lock() { mutex_ = new std::mutex(); }

  Texts& texts() const { return *texts_; }
  const std::shared_ptr<Texts>& shared_texts() const { return texts_; }

  // A record that outlives the tensor in the hands of the caller; null for null.
  static StorageRef hold(Storage* record) {
    return record == nullptr ? StorageRef() : StorageRef::unsafe_reclaim_from_nonowning(record);
  }

  static bool expired(c10::StorageImpl* address) { return c10::raw::weak_intrusive_ptr::use_count(address) == 0; }

  std::atomic<bool> foreign_on_device{false};  // whether the memory of any storage on a device is not torch's own

 private:
  Storage* meet(c10::StorageImpl* address, int64_t seq) {
    const bool foreign = is_foreign(*address);
    const auto nbytes = static_cast<int64_t>(address->nbytes());
    std::lock_guard<std::mutex> lock(*mutex_);
    if (Storage* const found = records_.find(address)) return found;
    auto record = c10::make_intrusive<Storage>(next_serial_++, address, nbytes, seq, texts_);
    record->foreign = foreign;
    if (foreign && address->device_type() != at::kCPU) foreign_on_device.store(true);
    Storage* const made = record.get();
    records_.add(address, std::move(record));  // in the order of their serial numbers
    return made;
  }

  const std::shared_ptr<Texts> texts_;
  const std::function<int64_t()> next_seq_;
  std::mutex* mutex_ = new std::mutex();  // never freed: who waits for the old one after a fork does not exist
  Records<StorageRef> records_;
  std::vector<StorageRef> closed_;
  uint32_t next_serial_ = 0;
  int64_t looked_at_ = 0;
};

// Adds Geometry, Storage and Storages; see storages_python.h.
void bind_storages(pybind11::module_& module);

}  // namespace opguard

#include "storages_python.h"
