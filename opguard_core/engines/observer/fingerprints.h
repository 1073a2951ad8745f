// Digests of plain tensors: host memory at once through the compiled CPU twin, device memory by one launch per operator and device.
// Mirrors what probe/tensor.py does for plain host tensors and their conjugate and negative views.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cells.h"
#include "geometry.h"
#include "kinds.h"
#include "streams.h"

namespace opguard {

// A host tensor of at least so many bytes is read with the GIL let go of, if the caller holds it. Source: fingerprint/cpu.py.
inline constexpr int64_t kReleaseGilBytes = int64_t{1} << 16;

// Whether the calling thread came from Python and holds the GIL. Set by bindings only: an operator's thread is never asked, because
// asking the interpreter is not safe on every thread and version.
inline thread_local bool came_with_gil = false;
class CameWithGil {
 public:
  explicit CameWithGil(bool now = true) : before_(came_with_gil) { came_with_gil = now; }
  ~CameWithGil() { came_with_gil = before_; }

 private:
  const bool before_;
};

// What a fingerprint says: a content, a reason why there is none, or that Python has to look.
struct Reading {
  Content content;
  std::string unreadable;
  bool ask_python = false;
};

// Views of one operator's tensors that are yet to be launched; of one thread.
class Batch {
 public:
  bool empty() const { return views_.empty(); }
  size_t size() const { return views_.size(); }

  // The memory of the thread's last batch, so that operators with few views allocate nothing; and back.
  void begin() {
    if (views_.capacity() == 0) swap(spare());
  }
  void end() {
    devices_.clear();
    views_.clear();
    cells_.clear();
    if (views_.capacity() <= kSpare) swap(spare());
  }

  // Take over what another holds.
  void join(Batch& other) {
    devices_.insert(devices_.end(), other.devices_.begin(), other.devices_.end());
    views_.insert(views_.end(), other.views_.begin(), other.views_.end());
    cells_.insert(cells_.end(), std::make_move_iterator(other.cells_.begin()), std::make_move_iterator(other.cells_.end()));
    other = Batch();
  }

 private:
  friend class Fingerprints;
  static constexpr size_t kSpare = 64;

  static Batch& spare() {
    thread_local Batch kept;
    return kept;
  }
  void swap(Batch& other) {
    devices_.swap(other.devices_);
    views_.swap(other.views_);
    cells_.swap(other.cells_);
  }

  std::vector<int32_t> devices_;
  std::vector<og_view> views_;
  std::vector<CellRef> cells_;
};

// Constant once configured. Any thread, no GIL.
class Fingerprints {
 public:
  explicit Fingerprints(std::shared_ptr<Cells> cells) : cells_(std::move(cells)) {}

  Twin& twin() { return twin_; }
  Cells& cells() { return *cells_; }

  // api: the launcher's, null for none. flags: for `submit`.
  void set_launcher(const og_probe_api* api, uint32_t flags) {
    api_ = api;
    flags_ = flags;
  }
  const og_probe_api* launcher() const { return api_; }
  // What makes the launcher ready for a device: called once for each, on the thread that meets its first tensor, without locks;
  // answers "", or why it cannot. Takes the GIL itself if it needs it.
  void set_open(std::function<std::string(int32_t device)> open) { open_ = std::move(open); }
  // Another way to the current stream of a device than torch's.
  void set_stream_of(void* (*stream_of)(int32_t device)) { stream_of_ = stream_of; }

  // Digest a plain tensor whose geometry, byte offset and kind these are.
  //   seq, touches_state: of the event and the storage, for the gap if the digests get lost.
  //   batch: takes a device's tensor, whose content waits until `launch` and its record.
  // Cost: 0.4 us for a small host tensor, then memory speed; 0.1 us for a device's.
  Reading of(const at::Tensor& tensor, const Geometry& geometry, int64_t offset, Kind kind, uint64_t seq, bool touches_state, Batch& batch) const {
    Reading reading;
    if (kind.access != Access::host && (kind.access != Access::cuda || api_ == nullptr)) return ask_python(reading);
    if ((kind.conjugate || kind.negative) && !c10::isFloatingType(geometry.kind) && !c10::isComplexType(geometry.kind)) {
      reading.unreadable = std::string("a negative view of torch.") + Geometry::dtype_name(geometry.kind);
      return reading;
    }
    const Reader& reader = geometry.reader(twin_, kind.conjugate, kind.negative);
    if (!reader.fits || twin_.function() == nullptr) return ask_python(reading);
    if (reader.extent_bytes == 0) {
      // A lazy parameter without a shape looks like this.
      if (has_own_class(tensor)) return ask_python(reading);
      reading.content.digests = reader.read(twin_.function(), nullptr);
      return reading;
    }
    const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    if (offset + reader.extent_bytes > static_cast<int64_t>(storage.nbytes())) {
      reading.unreadable = "the storage was freed or is smaller than the tensor";
      return reading;
    }
    // Read-only access: asking for writable memory would end a copy-on-write sharing.
    const char* memory = static_cast<const char*>(storage.data());
    if (memory == nullptr) {
      reading.unreadable = "the tensor has no memory of its own";
      return reading;
    }
    if (kind.access == Access::host) {
      reading.content.digests = read_host(reader, memory + offset, geometry.nbytes);
    } else {
      const int32_t device = storage.device().index();
      if (!is_open(device, reading.unreadable)) return reading;
      reading.content.cell = c10::make_intrusive<Cell>(seq, static_cast<uint64_t>(geometry.nbytes), touches_state);
      batch.begin();
      batch.devices_.push_back(device);
      batch.views_.push_back(reader.view(reinterpret_cast<uintptr_t>(memory + offset)));
      batch.cells_.push_back(reading.content.cell);
    }
    return reading;
  }

  // Launch what a batch holds, on the calling thread's current stream of each device, and empty it. Never blocks. What cannot be
  // launched is lost.
  void launch(Batch& batch) const {
    while (!batch.empty()) launch_one(batch);
  }

  static bool is_exact(PyTypeObject* type) { return type == exact_[0] || type == exact_[1]; }
  // The classes of ordinary tensors: Tensor and Parameter.
  static void set_exact(PyObject* tensor, PyObject* parameter) {
    exact_[0] = reinterpret_cast<PyTypeObject*>(tensor);
    exact_[1] = reinterpret_cast<PyTypeObject*>(parameter);
  }

 private:
  static Reading& ask_python(Reading& reading) {
    reading.ask_python = true;
    return reading;
  }

  Digests read_host(const Reader& reader, const char* memory, int64_t nbytes) const {
    if (!came_with_gil || nbytes < kReleaseGilBytes) return reader.read(twin_.function(), memory);
    pybind11::gil_scoped_release released;
    return reader.read(twin_.function(), memory);
  }

  // Whether the launcher works for a device; if not, why.
  bool is_open(int32_t device, std::string& problem) const {
    if (!open_) return true;
    const auto index = static_cast<size_t>(device);
    if (index < opened_.size() && opened_[index].load(std::memory_order_acquire)) return true;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto known = problems_.find(device);
      if (known != problems_.end()) {
        problem = known->second;
        return false;
      }
    }
    problem = open_(device);  // twice, if two threads meet it at once: the launcher opens it once
    if (problem.empty()) {
      if (index < opened_.size()) opened_[index].store(true, std::memory_order_release);
      return true;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    problems_.emplace(device, problem);
    return false;
  }

  // The views of the first one's device.
  void launch_one(Batch& batch) const {
    const int32_t device = batch.devices_.front();
    const bool same = std::all_of(batch.devices_.begin(), batch.devices_.end(), [&](int32_t other) { return other == device; });
    if (same) {
      submit(device, batch.views_, batch.cells_);
      batch.end();
      return;
    }
    Batch now, later;
    for (size_t index = 0; index < batch.size(); ++index) {
      Batch& part = batch.devices_[index] == device ? now : later;
      part.devices_.push_back(batch.devices_[index]);
      part.views_.push_back(batch.views_[index]);
      part.cells_.push_back(std::move(batch.cells_[index]));
    }
    submit(device, now.views_, now.cells_);
    batch = std::move(later);
  }

  void submit(int32_t device, const std::vector<og_view>& views, const std::vector<CellRef>& cells) const {
    uint64_t first = 0;
    cells_->begin_launch();
    try {
      first = api_->submit(device, stream_of_(device), views.data(), static_cast<int32_t>(views.size()), flags_);
    } catch (const std::exception&) {
      first = 0;  // torch cannot tell the stream: not launched
    }
    cells_->expect(first, cells);
  }

  template <class Slot>
  static auto object_of(const Slot* slot, int) -> decltype(slot->load_pyobj()) {
    return slot->load_pyobj();
  }
  template <class Slot>
  static PyObject* object_of(const Slot* slot, long) {  // before torch 2.10 or so
    return slot->_unchecked_untagged_pyobj();
  }

  // Whether Python knows this tensor as something else than a Tensor or Parameter.
  static bool has_own_class(const at::Tensor& tensor) {
    const PyObject* object = object_of(tensor.unsafeGetTensorImpl()->pyobj_slot(), 0);
    return object != nullptr && !is_exact(Py_TYPE(object));
  }

  static inline PyTypeObject* exact_[2] = {nullptr, nullptr};
  const std::shared_ptr<Cells> cells_;
  Twin twin_;
  const og_probe_api* api_ = nullptr;
  uint32_t flags_ = 0;
  std::function<std::string(int32_t)> open_;
  mutable std::array<std::atomic<bool>, 64> opened_{};
  mutable std::mutex mutex_;
  mutable std::unordered_map<int32_t, std::string> problems_;
  void* (*stream_of_)(int32_t) = &current_cuda_stream;
};

}  // namespace opguard
