// Probes as Python sees them: the methods of probes.Probes, which add rows of trace/schema.py to a list of the caller's. For the slow
// path, the state boundary, nodes that run aside and collectives.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apart.h"
#include "probes.h"
#include "storages_python.h"

namespace opguard {
namespace probes_python {

namespace py = pybind11;

// What has been imported once; never let go of.
struct Imported {
  py::object slot_row, waiting;
  static const Imported& get() {
    static const auto* imported = new Imported{py::module_::import("opguard_core.trace.schema").attr("SlotRow"),
                                               py::module_::import("opguard_core.engines.deferred").attr("words_of")};
    return *imported;
  }
};

inline py::object row_of(Texts& texts, int64_t seq, const SlotRow& row) {
  const auto null = [](int64_t number) { return storages_python::or_none(number, NO_NUMBER); };
  const Digests& now = row.content.digests;
  py::tuple words = row.content.cell ? py::tuple(Imported::get().waiting(contents_python::known_of(row.content)))
                                     : py::make_tuple(now.mix64, now.value64, now.bag64, now.xor32, now.trivial);
  return Imported::get().slot_row(seq, texts.slot.text(row.slot), texts.direction.text(row.direction), texts.status.text(row.status),
                                  texts.dtype.text(row.dtype), texts.shape.text(row.shape), texts.strides.text(row.strides),
                                  texts.device.text(row.device), null(row.storage), row.extent_lo, row.extent_hi, null(row.version), row.nbytes,
                                  words[0], words[1], words[2], words[3], words[4], texts.name.text(row.name));
}

// While one is entered, what a thread's slots need is launched together: for many tensors between operators, as of the state.
class Together {
 public:
  static constexpr size_t kAtOnce = 64;  // of one launch

  explicit Together(std::shared_ptr<Probes> probes) : probes_(std::move(probes)) {}

  void enter() { outer_ = std::exchange(open, this); }
  void exit() {
    open = outer_;
    probes_->fingerprints().launch(batch_);
  }

  static void launch(Probes& probes, Slots& slots) {
    if (open == nullptr) return probes.launch(slots);
    open->batch_.join(slots.batch);
    if (open->batch_.size() >= kAtOnce) probes.fingerprints().launch(open->batch_);
  }

 private:
  static inline thread_local Together* open = nullptr;
  const std::shared_ptr<Probes> probes_;
  Together* outer_ = nullptr;
  Batch batch_;
};

// Gather slots of a tensor with `look`, launch what they need, and append their rows to a list of Python's.
template <class Look>
void gather(Probes& probes, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor, Look look) {
  const CameWithGil came;
  Slots slots;
  look(slots, probes.texts().slot.code(utf8(path)), storages_python::tensor_of(tensor));
  Together::launch(probes, slots);
  for (const SlotRow& row : slots.rows) rows.attr("append")(row_of(probes.texts(), seq, row));
}

inline Code direction_of(const std::string& direction) { return direction == "out" ? directions::OUT : directions::MUT; }

inline std::shared_ptr<Probes> make(std::shared_ptr<Storages> storages, py::object coverage, std::shared_ptr<Fingerprints> fingerprints, bool carry,
                                    py::object consume, std::function<void(const std::string&)> entered, std::shared_ptr<Outbox> outbox) {
  std::function<void(const char*)> count;
  if (entered) count = [entered](const char* reason) { entered(reason); };
  auto python = std::make_unique<ApartInPython>(std::move(coverage), std::move(consume), std::move(count), std::move(outbox));
  return std::make_shared<Probes>(std::move(storages), std::move(fingerprints), std::move(python), carry);
}

inline void bind_fingerprints(py::module_& module) {
  py::class_<Cell, CellRef>(module, "Cell")
      .def_property_readonly("nbytes", [](const Cell& self) { return self.digests().nbytes; })
      .def_property_readonly("ticket", [](const Cell& self) { return self.ticket.load(); })
      .def_property_readonly("t_device_ns", [](const Cell& self) { return self.t_device_ns(); })
      .def("look", &contents_python::look)
      .def("lose", &Cell::lose);
  py::class_<Cells, std::shared_ptr<Cells>>(module, "Cells")
      .def(py::init<>())
      .def("abandon", &Cells::abandon)
      .def_property_readonly("waiting", &Cells::waiting)
      .def_property_readonly("most", &Cells::most);
  py::class_<Fingerprints, std::shared_ptr<Fingerprints>>(module, "Fingerprints")
      .def(py::init<std::shared_ptr<Cells>>(), py::arg("cells"))
      // address, plan_bytes: of `opguard_fingerprint` of the compiled CPU twin.
      .def("set_function", [](Fingerprints& self, uintptr_t address, size_t plan_bytes) { self.twin().set_function(address, plan_bytes); },
           py::arg("address"), py::arg("plan_bytes"))
      .def("add_element", [](Fingerprints& self, const std::string& name, int32_t widening, int32_t device_widening, int32_t item_bytes,
                             int32_t num_components, const std::vector<uint32_t>& table) {
            self.twin().add(name, {widening, device_widening, item_bytes, num_components, nullptr}, table);
          },
          py::arg("name"), py::arg("widening"), py::arg("device_widening"), py::arg("item_bytes"), py::arg("num_components"), py::arg("table"))
      // capsule: of an og_probe_api. flags: of its `submit`.
      .def("set_launcher", [](Fingerprints& self, const py::capsule& capsule, uint32_t flags) {
            const auto* api = static_cast<const og_probe_api*>(PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr())));
            if (api == nullptr) throw py::error_already_set();
            if (api->version != OG_API_VERSION) throw py::value_error("a launcher of another version");
            self.set_launcher(api, flags);
          },
          py::arg("capsule"), py::arg("flags") = 0)
      // open(device) -> "" or why the launcher cannot serve it; called once for each device, when its first tensor is met.
      .def("set_open", &Fingerprints::set_open, py::arg("open"))
      .def_property_readonly("has_launcher", [](const Fingerprints& self) { return self.launcher() != nullptr; })
      // Fill cells with what has arrived; never waits. Number of records taken.
      .def("poll", [](Fingerprints& self) {
            py::gil_scoped_release released;
            return self.launcher() == nullptr ? 0 : self.cells().poll(*self.launcher());
          })
      // Wait until a ticket has arrived or the time is over, then `poll`.
      .def("wait", [](Fingerprints& self, uint64_t ticket, double timeout_s) {
            py::gil_scoped_release released;
            if (self.launcher() == nullptr) return;
            if (ticket != 0) self.launcher()->wait(ticket, static_cast<int64_t>(timeout_s * 1e9));
            self.cells().poll(*self.launcher());
          },
          py::arg("ticket"), py::arg("timeout_s"))
      // Records of the same launcher that came for probes of others, as cuda/launch.c gives them; polls first.
      .def("take_others", [](Fingerprints& self, const py::object&) {
            std::vector<og_record> records;
            {
              py::gil_scoped_release released;
              if (self.launcher() != nullptr) self.cells().poll(*self.launcher());
              records = self.cells().take_others();
            }
            py::list others;
            for (const og_record& one : records) {
              others.append(py::make_tuple(one.ticket, one.occurrence, one.mix64, one.value64, one.bag64, one.xor64, one.t_device_ns, one.nan_count,
                                           one.inf_count, static_cast<double>(one.max_abs), one.flags, one.region, one.reserved));
            }
            return others;
          },
          py::arg("most") = py::none())
      .def_property_readonly("cells", [](Fingerprints& self) -> Cells& { return self.cells(); }, py::return_value_policy::reference_internal);
}

}  // namespace probes_python

inline void bind_probes(pybind11::module_& module) {
  namespace py = pybind11;
  using namespace probes_python;
  bind_storages(module);
  bind_fingerprints(module);
  Fingerprints::set_exact(py::object(py::module_::import("torch").attr("Tensor")).release().ptr(),
                          py::object(py::module_::import("torch.nn").attr("Parameter")).release().ptr());
  module.def("is_plain", [](const py::object& tensor) { return is_plain(storages_python::tensor_of(tensor)); }, py::arg("tensor"));
  module.def("current_cuda_stream", [](int32_t device) { return reinterpret_cast<uintptr_t>(current_cuda_stream(device)); }, py::arg("device"));
  py::class_<Together>(module, "Together")
      .def("__enter__", &Together::enter)
      .def("__exit__", [](Together& self, const py::args&) { self.exit(); });
  py::class_<Probes, std::shared_ptr<Probes>>(module, "Probes")
      .def(py::init(&make), py::arg("storages"), py::arg("coverage"), py::arg("fingerprints"), py::kw_only(), py::arg("carry"), py::arg("consume"),
           py::arg("entered") = nullptr, py::arg("outbox") = nullptr)
      .def("device", [](Probes& self, const py::object& tensor) { return self.texts().device.text(self.device(storages_python::tensor_of(tensor))); },
           py::arg("tensor"))
      .def("input", [](Probes& self, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor, bool reads, bool consume,
                       bool carried) {
            gather(self, rows, seq, path, tensor, [&](Slots& slots, Code code, const at::Tensor& t) { self.input(slots, seq, code, t, reads, consume, carried); });
          },
          py::arg("rows"), py::arg("seq"), py::arg("path"), py::arg("tensor"), py::kw_only(), py::arg("reads") = true, py::arg("consume") = true,
          py::arg("carried") = false)
      .def("output", [](Probes& self, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor, bool written, bool reads) {
            gather(self, rows, seq, path, tensor, [&](Slots& slots, Code code, const at::Tensor& t) { self.output(slots, seq, code, t, written, reads); });
          },
          py::arg("rows"), py::arg("seq"), py::arg("path"), py::arg("tensor"), py::kw_only(), py::arg("written") = true, py::arg("reads") = true)
      .def("mutated", [](Probes& self, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor, bool declared, bool reads) {
            gather(self, rows, seq, path, tensor, [&](Slots& slots, Code code, const at::Tensor& t) { self.mutated(slots, seq, code, t, declared, reads); });
          },
          py::arg("rows"), py::arg("seq"), py::arg("path"), py::arg("tensor"), py::kw_only(), py::arg("declared") = true, py::arg("reads") = true)
      .def("perhaps_mutated", [](Probes& self, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor,
                                 const py::object& difference) {
            gather(self, rows, seq, path, tensor, [&](Slots& slots, Code code, const at::Tensor& t) {
              self.mutated(slots, seq, code, t, false, false);
              slots.rows.back().status = statuses::PROBED;
            });
            const py::object row = rows[py::int_(-1)];
            rows[py::int_(-1)] = row.attr("_replace")(py::arg("mix64") = difference);
          },
          py::arg("rows"), py::arg("seq"), py::arg("path"), py::arg("tensor"), py::arg("difference"))
      .def("later", [](Probes& self, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor,
                       const std::string& direction) -> py::object {
            std::optional<Location> place;
            gather(self, rows, seq, path, tensor,
                   [&](Slots& slots, Code code, const at::Tensor& t) { place = self.later(slots, seq, code, t, direction_of(direction)); });
            if (!place) return py::none();
            return py::make_tuple(Storages::hold(place->record), place->geometry, place->offset);
          },
          py::arg("rows"), py::arg("seq"), py::arg("path"), py::arg("tensor"), py::arg("direction"))
      .def("state", [](Probes& self, const py::object& rows, int64_t seq, const py::str& path, const py::object& tensor) {
            gather(self, rows, seq, path, tensor, [&](Slots& slots, Code code, const at::Tensor& t) { self.state(slots, seq, code, t); });
          },
          py::arg("rows"), py::arg("seq"), py::arg("path"), py::arg("tensor"))
      .def("together", [](std::shared_ptr<Probes> self) { return std::make_unique<Together>(std::move(self)); })
      .def("locate", [](Probes& self, const py::object& tensor, int64_t seq) {
            const Location place = self.locate(storages_python::tensor_of(tensor), seq);
            return py::make_tuple(place.geometry, place.offset, Storages::hold(place.record));
          },
          py::arg("tensor"), py::arg("seq"));
}

}  // namespace opguard
