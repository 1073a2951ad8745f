// What of a slot is Python's: collectives, coverage, fingerprints of memory that C++ cannot read, and tensors that have to be taken
// apart first. Mirrors Probes._apart, _part and _bare of probes.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "outbox_python.h"
#include "probes.h"

namespace opguard {

// With the GIL.
inline pybind11::object wrapped(const at::Tensor& tensor) { return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor)); }

class ApartInPython : public Apart {
 public:
  // coverage: coverage.Coverage. consume: called with a storage's record and whether it is read. entered: called at each entry from C++ with its reason;
  // may be null. outbox: fills cells whose digests Python promises; without one such digests are lost.
  ApartInPython(pybind11::object coverage, pybind11::object consume, std::function<void(const char*)> entered, std::shared_ptr<Outbox> outbox)
      : coverage_(std::move(coverage)), consume_(std::move(consume)), entered_(std::move(entered)), outbox_(std::move(outbox)) {
    namespace py = pybind11;
    parts_of_ = std::make_unique<Held>(py::module_::import("opguard_core.engines.kinds").attr("parts_of"));
    const py::module_ tensor = py::module_::import("opguard_core.probe.tensor");
    fingerprint_ = std::make_unique<Held>(tensor.attr("fingerprint"));
    unreadable_ = std::make_unique<Held>(tensor.attr("Unreadable"));
  }

  void consume(Storage& record, bool read) override {
    const Entered gil(*this, "collective");
    consume_.get()(StorageRef::unsafe_reclaim_from_nonowning(&record), read);
  }

  void gap(const char* reason, const std::string& detail, bool touches_state, int64_t seq) override {
    const Entered gil(*this, reason);
    namespace py = pybind11;
    coverage_.get().attr("gap")(reason, detail, py::arg("touches_state") = touches_state, py::arg("seq") = seq);
  }

  void count(const char* key) override {
    const Entered gil(*this, key);
    coverage_.get().attr("count")(key);
  }

  Reading fingerprint(const at::Tensor& tensor, uint64_t seq, bool touches_state) override {
    const Entered gil(*this, "fingerprint");
    namespace py = pybind11;
    const py::object found = fingerprint_->get()(wrapped(tensor));
    Reading reading;
    if (py::isinstance(found, unreadable_->get())) {
      reading.unreadable = utf8(found.attr("reason"));
    } else if (PyTuple_Check(found.ptr())) {
      reading.content.digests = outbox_python::digests_of(found);
    } else {
      reading.content.cell = c10::make_intrusive<Cell>(seq, found.attr("nbytes").cast<uint64_t>(), touches_state);
      if (outbox_) {
        outbox_->promise({{nullptr, 0, std::make_shared<Held>(found), reading.content.cell}});
      } else {
        reading.content.cell->lose();
      }
    }
    return reading;
  }

  void apart(Probes& probes, Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, Code direction, bool reads) override {
    const Entered gil(*this, "tensor-in-parts");
    namespace py = pybind11;
    const py::object parts = parts_of_->get()(wrapped(tensor));
    if (py::isinstance(parts, unreadable_->get())) {
      if (reads) gap("unreadable-tensor", utf8(parts.attr("reason")), true, seq);
      return bare(probes, rows, path, direction, reads ? statuses::UNREADABLE : statuses::METADATA, tensor);
    }
    if (py::len(parts) == 0) return bare(probes, rows, path, direction, statuses::METADATA, tensor);
    const std::string whole = probes.texts().slot.text(path);
    for (const py::handle part : parts) {
      const std::string name = utf8(part.attr("name"));
      const Code code = name.empty() ? path : probes.texts().slot.code(whole + "." + name);
      const at::Tensor piece = THPVariable_Unpack(part.attr("tensor").ptr());
      add_part(probes, rows, seq, code, piece, direction, reads, part.attr("copied").cast<bool>());
    }
  }

 private:
  // The GIL, for as long as Python is asked; our own operators in there are not the program's.
  class Entered {
   public:
    Entered(const ApartInPython& self, const char* reason) : unobserved_(c10::DispatchKey::Fake) {
      if (self.entered_ && !came_from_python_) self.entered_(reason);
    }

   private:
    const bool came_from_python_ = came_with_gil;  // as it is before `came_`
    c10::impl::ExcludeDispatchKeyGuard unobserved_;
    pybind11::gil_scoped_acquire gil_;
    CameWithGil came_;
  };

  void add_part(Probes& probes, Slots& rows, int64_t seq, Code path, const at::Tensor& tensor, Code direction, bool reads, bool copied) {
    if (!is_plain(tensor)) {
      apart(probes, rows, seq, path, tensor, direction, reads);
    } else if (copied) {
      // Read at once: the copy goes when this returns.
      probes.copy(rows, seq, path, tensor, direction, reads);
      probes.launch(rows);
    } else if (direction == directions::IN) {
      probes.input(rows, seq, path, tensor, reads);
    } else if (direction == directions::OUT) {
      probes.output(rows, seq, path, tensor, true, reads);
    } else {
      probes.mutated(rows, seq, path, tensor, false, reads);
    }
  }

  // A row without content or place.
  static void bare(Probes& probes, Slots& rows, Code path, Code direction, Code status, const at::Tensor& tensor) {
    namespace py = pybind11;
    SlotRow& row = rows.rows.emplace_back();
    row.slot = path;
    row.direction = direction;
    row.status = status;
    row.dtype = probes.texts().dtype.code(Geometry::dtype_name(tensor.scalar_type()));
    row.device = probes.device(tensor);
    std::string shape;
    try {
      for (const py::handle size : wrapped(tensor).attr("shape")) {
        if (!shape.empty()) shape += ',';
        shape += std::to_string(py::int_(py::reinterpret_borrow<py::object>(size)).cast<int64_t>());
      }
    } catch (py::error_already_set& error) {
      // Ragged (a nested tensor has no one shape) or symbolic.
      if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_TypeError)) throw;
      shape = "?";
    }
    row.shape = probes.texts().shape.code(shape);
  }

  const Held coverage_, consume_;
  const std::function<void(const char*)> entered_;
  const std::shared_ptr<Outbox> outbox_;
  std::unique_ptr<Held> parts_of_, fingerprint_, unreadable_;
};

}  // namespace opguard
