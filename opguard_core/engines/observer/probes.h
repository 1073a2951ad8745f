// Slots: one row for every tensor an operator reads, returns or writes. Mirrors probes.py.
//
// Decides for each what is known of its bytes: probed here, carried from the write that made them, never written, unreadable.
// A tensor that is not plain memory goes through Python (`parts_of`, `fingerprint`; apart.h) and comes back as rows of the same list.
// What it needs of Python it asks for without holding a lock, and rarely.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fingerprints.h"
#include "geometry.h"
#include "kinds.h"
#include "rows.h"
#include "storages.h"
#include "texts.h"

namespace opguard {

// Where the bytes of a plain tensor are. `record` is valid while the caller holds the tensor.
struct Location {
  GeometryRef geometry;
  int64_t offset;  // bytes
  Storage* record;
};

// The slots of one event while they are gathered, and what is yet to be launched for them; of one thread.
struct Slots {
  SlotRows rows;
  Batch batch;
};

// The parts of Python that a slot may need; each takes the GIL itself and may throw what Python raised. See apart.h.
class Probes;
class Apart {
 public:
  virtual ~Apart() = default;
  // Someone is about to look at what a collective left in a storage.
  virtual void consume(Storage& record, bool read) = 0;
  // coverage.Coverage.gap and count.
  virtual void gap(const char* reason, const std::string& detail, bool touches_state, int64_t seq) = 0;
  virtual void count(const char* key) = 0;
  // probe.tensor.fingerprint.
  virtual Reading fingerprint(const at::Tensor& tensor, uint64_t seq, bool touches_state) = 0;
  // Probes._apart.
  virtual void apart(Probes& probes, Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, Code direction, bool reads) = 0;
};

// Version counter, kNoVersion for tensors made in inference mode, which have none.
inline int64_t version_of(const at::Tensor& tensor) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? static_cast<int64_t>(counter.current_version()) : kNoVersion;
}

class Probes {
 public:
  // carry: whether an input may take over the digests of the write that produced it.
  Probes(std::shared_ptr<Storages> storages, std::shared_ptr<Fingerprints> fingerprints, std::unique_ptr<Apart> python, bool carry)
      : storages_(std::move(storages)), fingerprints_(std::move(fingerprints)), python_(std::move(python)), carry_(carry), geometries_(storages_->shared_texts()) {}

  Storages& storages() { return *storages_; }
  Fingerprints& fingerprints() { return *fingerprints_; }
  Texts& texts() { return storages_->texts(); }

  // Whether this tensor's slot needs Python: it is not plain memory, or memory that we cannot read here.
  bool needs_python(const at::Tensor& tensor) const {
    const Access access = kind_of(tensor).access;
    return access == Access::apart || access == Access::python || (access == Access::cuda && fingerprints_->launcher() == nullptr);
  }

  // Text of a tensor's device.
  Code device(const at::Tensor& tensor) {
    const c10::Device device = tensor.device();
    if (device.is_cpu()) return CPU_DEVICE;
    const auto index = static_cast<size_t>(device.index());
    if (!device.is_cuda() || index >= devices_.size()) return texts().device.code(device.str());
    Code known = devices_[index].load(std::memory_order_relaxed);
    if (known == CPU_DEVICE) devices_[index].store(known = texts().device.code(device.str()), std::memory_order_relaxed);
    return known;
  }

  // Add the slot of a tensor about to be read. `path` is a code of the column "slot". Call `launch` when all inputs are there, and
  // again when all results are.
  //   reads: false if only its shape matters to the operator.
  //   consume: false if a result that is on its way may not be there yet (the operator is the wait for it, or reads it in the order of
  //     a device's stream): then it is recorded by shape.
  //   carried: without `reads`: take over what is known from the write that made it (the mode trusts the operator).
  // Cost: 0.3 us and the fingerprint.
  void input(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, bool reads = true, bool consume = true, bool carried = false) {
    const Kind kind = kind_of(tensor);
    if (kind.access == Access::apart) return python_->apart(*this, rows, seq, path, tensor, directions::IN, reads);
    const Location place = locate(tensor, seq);
    if (place.record->pending()) {
      if (consume) python_->consume(*place.record, reads || carried);
      else reads = carried = false;
    }
    const int64_t version = version_of(tensor);
    Content content;
    Code status = statuses::METADATA;
    if (reads) {
      status = content_of(tensor, kind, place, version, seq, rows.batch, content);
    } else if (carried && !place.record->foreign && kind.as_stored() && place.record->carried(place.offset, *place.geometry, version, content)) {
      status = statuses::CARRIED;
    }
    add(rows, path, directions::IN, status, tensor, place, version, std::move(content));
  }

  // Add the slot of a returned tensor.
  //   written: false if the operator left its bytes undefined.
  //   reads: false if the mode does not look at this operator's content.
  void output(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, bool written = true, bool reads = true) {
    const Kind kind = kind_of(tensor);
    if (kind.access == Access::apart) return python_->apart(*this, rows, seq, path, tensor, directions::OUT, written && reads);
    const Location place = locate(tensor, seq);
    const int64_t version = version_of(tensor);
    if (!written) {
      // Else the memory of an argument, of which others know better what is written.
      if (place.record->born_seq == seq) place.record->never_written();
      return add(rows, path, directions::OUT, statuses::UNINITIALISED, tensor, place, version, {});
    }
    write(rows, seq, path, tensor, kind, directions::OUT, place, version, reads);
  }

  // Add the slot of an argument the operator wrote in place.
  //   declared: whether autograd will bump its version counter once this call has returned.
  //   reads: false if the mode does not look at this operator's content.
  void mutated(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, bool declared = true, bool reads = true) {
    const Kind kind = kind_of(tensor);
    if (kind.access == Access::apart) return python_->apart(*this, rows, seq, path, tensor, directions::MUT, reads);
    const Location place = locate(tensor, seq);
    int64_t version = version_of(tensor);
    const bool expected = declared && version != kNoVersion;
    if (expected) ++version;
    write(rows, seq, path, tensor, kind, directions::MUT, place, version, reads, expected);
  }

  // Look again at an input that ought to be unchanged: as `mutated`, if its content is no longer that of row `before`, which was
  // probed. Where the answer comes later, so does the slot, or not (`Content::present`).
  void undeclared(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, size_t before) {
    const Kind kind = kind_of(tensor);
    if (kind.access == Access::apart) return;  // its parts were probed under other names
    const Location place = locate(tensor, seq);
    Reading found = read(tensor, kind, place, seq, rows.batch);
    if (!found.unreadable.empty()) return;
    const Content& earlier = rows.rows[before].content;
    if (!only_if_changed(found.content, earlier, seq)) return;
    const int64_t version = version_of(tensor);
    if (!found.content.unless) {
      python_->count("undeclared_writes");
      place.record->wrote(place.offset, place.geometry, version, kind.as_stored() ? &found.content : nullptr);
    }
    add(rows, path, directions::MUT, statuses::PROBED, tensor, place, version, std::move(found.content));
  }

  // Make a content one that is there only if it is not `earlier`'s: where that is known later, `unless` says so. False if it is the same.
  static bool only_if_changed(Content& now, const Content& earlier, int64_t seq) {
    if (!now.cell && !earlier.cell) return now.digests.mix64 != earlier.digests.mix64;
    now.unless = earlier.cell ? earlier.cell : ready_cell(seq, earlier.digests);
    if (!now.cell) now.cell = ready_cell(seq, now.digests);
    return true;
  }

  // Add the slot of a tensor whose content is not there yet; where it will be, nothing if it cannot be found again.
  std::optional<Location> later(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, Code direction) {
    if (!is_plain(tensor)) {
      python_->apart(*this, rows, seq, path, tensor, direction, false);
      return std::nullopt;
    }
    Location place = locate(tensor, seq);
    const int64_t version = version_of(tensor);
    place.record->wrote(place.offset, place.geometry, kNoVersion, nullptr);
    add(rows, path, direction, statuses::METADATA, tensor, place, version, {});
    return place;
  }

  // Add a slot of the state boundary; its path is a name such as "param:layer.weight".
  void state(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor) { input(rows, seq, path, tensor); }

  // Add the slot of a copy that was made to be read: it has no storage of the program's.
  void copy(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, Code direction, bool reads) {
    const GeometryRef geometry = geometries_.of(tensor);
    SlotRow& row = rows.rows.emplace_back();
    describe(row, path, direction, statuses::METADATA, tensor, *geometry);
    row.extent_hi = static_cast<uint64_t>(geometry->span);
    if (!reads) return;
    const int64_t offset = tensor.storage_offset() * geometry->itemsize;
    Reading found = fingerprints_->of(tensor, *geometry, offset, kind_of(tensor), static_cast<uint64_t>(seq), true, rows.batch);
    if (found.ask_python) found = python_->fingerprint(tensor, static_cast<uint64_t>(seq), true);
    settle(rows.rows.back(), found, true, seq);
  }

  // Geometry, byte offset and storage of a plain tensor.
  Location locate(const at::Tensor& tensor, int64_t seq) {
    GeometryRef geometry = geometries_.of(tensor);
    const int64_t offset = tensor.storage_offset() * geometry->itemsize;
    return {std::move(geometry), offset, storages_->of(tensor, seq)};
  }

  // Launch what was gathered: in the operator's stream, behind what has been given to it so far.
  void launch(Slots& rows) {
    if (!rows.batch.empty()) fingerprints_->launch(rows.batch);
  }

  Apart& python() { return *python_; }

 private:
  static CellRef ready_cell(int64_t seq, const Digests& digests) {
    auto cell = c10::make_intrusive<Cell>(static_cast<uint64_t>(seq), digests.nbytes, false);
    cell->keep(digests, 0);
    return cell;
  }

  Reading read(const at::Tensor& tensor, Kind kind, const Location& place, int64_t seq, Batch& batch) {
    const auto number = static_cast<uint64_t>(seq);
    const bool touches_state = place.record->named();
    Reading found = fingerprints_->of(tensor, *place.geometry, place.offset, kind, number, touches_state, batch);
    return found.ask_python ? python_->fingerprint(tensor, number, touches_state) : found;
  }

  // Status and content of a reading; what could not be read is a gap.
  Code status_of(Reading& found, bool touches_state, int64_t seq, Content& content) {
    if (!found.unreadable.empty()) {
      python_->gap("unreadable-tensor", found.unreadable, touches_state, seq);
      return statuses::UNREADABLE;
    }
    content = std::move(found.content);
    return statuses::PROBED;
  }

  void settle(SlotRow& row, Reading& found, bool touches_state, int64_t seq) {
    Content content;
    const Code status = status_of(found, touches_state, seq, content);
    row.status = status;
    row.content = std::move(content);
  }

  Code content_of(const at::Tensor& tensor, Kind kind, const Location& place, int64_t version, int64_t seq, Batch& batch, Content& content) {
    Storage& record = *place.record;
    if (!record.is_written(place.offset, *place.geometry)) return statuses::UNINITIALISED;
    const bool carries = carry_ && !record.foreign && kind.as_stored();
    if (carries && record.carried(place.offset, *place.geometry, version, content)) return statuses::CARRIED;
    const int64_t before = record.tick.load(std::memory_order_relaxed);
    Reading found = read(tensor, kind, place, seq, batch);
    const Code status = status_of(found, record.named(), seq, content);
    if (carries && status == statuses::PROBED) record.saw(place.offset, place.geometry, version, content, before);
    return status;
  }

  void write(Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, Kind kind, Code direction, const Location& place, int64_t version, bool reads,
             bool expected = false) {
    Content content;
    Code status = statuses::METADATA;
    if (reads) {
      Reading found = read(tensor, kind, place, seq, rows.batch);
      status = status_of(found, place.record->named(), seq, content);
    }
    const bool known = status == statuses::PROBED && kind.as_stored();
    place.record->wrote(place.offset, place.geometry, version, known ? &content : nullptr, expected);
    add(rows, path, direction, status, tensor, place, version, std::move(content));
  }

  void describe(SlotRow& row, Code path, Code direction, Code status, const at::Tensor& tensor, const Geometry& geometry) {
    row.slot = path;
    row.direction = direction;
    row.status = status;
    row.dtype = geometry.dtype;
    row.shape = geometry.shape;
    row.strides = geometry.strides;
    row.device = device(tensor);
    row.nbytes = static_cast<uint64_t>(geometry.nbytes);
  }

  void add(Slots& rows, Code path, Code direction, Code status, const at::Tensor& tensor, const Location& place, int64_t version, Content content) {
    SlotRow& row = rows.rows.emplace_back();
    describe(row, path, direction, status, tensor, *place.geometry);
    row.name = place.record->name();
    row.storage = place.record->serial;
    row.extent_lo = static_cast<uint64_t>(place.offset);
    row.extent_hi = static_cast<uint64_t>(place.offset + place.geometry->span);
    row.version = version == kNoVersion ? NO_NUMBER : version;
    row.content = std::move(content);
  }

  const std::shared_ptr<Storages> storages_;
  const std::shared_ptr<Fingerprints> fingerprints_;
  const std::unique_ptr<Apart> python_;
  const bool carry_;
  Geometries geometries_;
  std::array<std::atomic<Code>, 64> devices_{};  // of CUDA devices by index; CPU_DEVICE: not asked yet
};

// Adds Cells, Fingerprints and Probes; see probes_python.h.
void bind_probes(pybind11::module_& module);

}  // namespace opguard

#include "probes_python.h"
