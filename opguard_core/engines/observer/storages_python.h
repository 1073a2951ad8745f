// Storages as Python sees them: the attributes and methods of geometry.Geometry, storages.Storage and storages.Storages.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>

#include "contents_python.h"
#include "kinds.h"
#include "outbox.h"
#include "storages.h"

namespace opguard {
namespace storages_python {

namespace py = pybind11;

// `Storage.written`: what is known by (offset, base of the geometry), as storages.Seen.
struct WrittenViews {
  StorageRef record;
};

inline py::object or_none(int64_t number, int64_t none) { return number == none ? py::object(py::none()) : py::object(py::int_(number)); }

inline int64_t version_from(const py::object& version) { return version.is_none() ? kNoVersion : version.cast<int64_t>(); }

inline const at::Tensor& tensor_of(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("not a tensor");
  return THPVariable_Unpack(tensor.ptr());
}

inline py::list lifetimes(const std::vector<Lifetime>& found) {
  // A named tuple is made as `LifetimeRow._make` makes it: there are hundreds in a step.
  static auto* const row = reinterpret_cast<PyTypeObject*>(py::object(py::module_::import("opguard_core.trace.schema").attr("LifetimeRow")).release().ptr());
  py::list rows(found.size());
  for (size_t at = 0; at < found.size(); ++at) {
    const Lifetime& one = found[at];
    const py::tuple values = py::make_tuple(one.storage, one.nbytes, one.born_seq, or_none(one.dead_seq, -1));
    rows[at] = py::reinterpret_steal<py::object>(PyTuple_Type.tp_new(row, py::make_tuple(values).ptr(), nullptr));
  }
  return rows;
}

// As rows of `trace.packed.LIFETIME`: four 64-bit numbers each.
inline py::bytes packed(const std::vector<Lifetime>& found) {
  std::vector<int64_t> words;
  words.reserve(4 * found.size());
  for (const Lifetime& one : found) words.insert(words.end(), {static_cast<int64_t>(one.storage), one.nbytes, one.born_seq, one.dead_seq});
  return py::bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
}

inline GeometryRef base_of(const GeometryRef& geometry) {
  return GeometryRef::unsafe_reclaim_from_nonowning(const_cast<Geometry*>(geometry->base()));
}

inline void bind_geometry(py::module_& module) {
  py::class_<Geometry, GeometryRef>(module, "Geometry")
      .def_property_readonly("base", &base_of)
      .def_property_readonly("dtype", [](const Geometry& self) { return self.texts->dtype.text(self.dtype); })
      .def_property_readonly("shape", [](const Geometry& self) { return self.texts->shape.text(self.shape); })
      .def_property_readonly("strides", [](const Geometry& self) { return self.texts->strides.text(self.strides); })
      .def_readonly("itemsize", &Geometry::itemsize)
      .def_readonly("nbytes", &Geometry::nbytes)
      .def_readonly("span", &Geometry::span)
      .def_property_readonly("sizes", [](const Geometry& self) { return py::tuple(py::cast(std::vector<int64_t>(self.sizes.begin(), self.sizes.end()))); })
      .def_property_readonly("steps", [](const Geometry& self) { return py::tuple(py::cast(std::vector<int64_t>(self.steps.begin(), self.steps.end()))); })
      .def_property_readonly("kind", [](const Geometry& self) {
        return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(self.kind)));
      });
  py::class_<Geometries>(module, "Geometries")
      .def(py::init<std::shared_ptr<Texts>>(), py::arg("texts"))
      .def("of", [](Geometries& self, const py::object& tensor) { return self.of(tensor_of(tensor)); }, py::arg("tensor"))
      .def("__len__", &Geometries::size)
      .def_property_readonly_static("LIMIT", [](const py::object&) { return Geometries::kLimit; });
}

inline void bind_storage(py::module_& module) {
  py::class_<WrittenViews>(module, "WrittenViews")
      .def("__len__", [](const WrittenViews& self) { return self.record->written().size(); })
      .def("clear", [](const WrittenViews& self) { self.record->forget_written(); })
      .def("get", [](const WrittenViews& self, const py::tuple& view) -> py::object {
            const auto offset = view[0].cast<int64_t>();
            const auto geometry = view[1].cast<GeometryRef>();
            for (const Storage::Written& known : self.record->written()) {
              if (known.offset == offset && known.geometry->base() == geometry->base()) {
                return py::make_tuple(or_none(known.version, kNoVersion), contents_python::known_of(known.content), known.expected);
              }
            }
            return py::none();
          },
          py::arg("view"))
      .def("keys", [](const WrittenViews& self) {
        py::list keys;
        for (const Storage::Written& known : self.record->written()) keys.append(py::make_tuple(known.offset, base_of(known.geometry)));
        return keys;
      });
  py::class_<Storage, StorageRef>(module, "Storage")
      .def_readonly("serial", &Storage::serial)
      .def_readonly("born_seq", &Storage::born_seq)
      .def_property_readonly("nbytes", &Storage::nbytes)
      .def_property_readonly("address", [](const Storage& self) { return reinterpret_cast<uintptr_t>(self.address); })
      .def_property("name", [](const Storage& self) { return self.texts->name.text(self.name()); },
                    [](Storage& self, const py::str& name) { self.set_name(self.texts->name.code(utf8(name))); })
      .def_property("foreign", [](const Storage& self) { return self.foreign.load(); }, [](Storage& self, bool now) { self.foreign = now; })
      .def_property("gradient", [](const Storage& self) { return self.gradient.load(); }, [](Storage& self, bool now) { self.gradient = now; })
      .def_property_readonly("tick", [](const Storage& self) { return self.tick.load(); })
      .def_property("pending", &Storage::pending_object, &Storage::set_pending)
      .def_property_readonly("written", [](const StorageRef& self) { return WrittenViews{self}; })
      .def_property_readonly("gaps", [](const Storage& self) -> py::object {
        const auto gaps = self.gaps();
        return gaps.empty() ? py::object(py::none()) : py::cast(gaps);
      })
      .def("never_written", &Storage::never_written)
      .def("grew", &Storage::grew, py::arg("nbytes"))
      .def("is_written", [](const Storage& self, int64_t offset, const GeometryRef& geometry) { return self.is_written(offset, *geometry); },
           py::arg("offset"), py::arg("geometry"))
      .def("carried", [](const Storage& self, int64_t offset, const GeometryRef& geometry, const py::object& version) -> py::object {
            Content content;
            return self.carried(offset, *geometry, version_from(version), content) ? contents_python::known_of(content) : py::object(py::none());
          },
          py::arg("offset"), py::arg("geometry"), py::arg("version").none(true))
      .def("saw", [](Storage& self, int64_t offset, const GeometryRef& geometry, const py::object& version, const py::object& digests, int64_t before) {
            self.saw(offset, geometry, version_from(version), contents_python::content_of(digests), before);
          },
          py::arg("offset"), py::arg("geometry"), py::arg("version").none(true), py::arg("digests"), py::arg("before"))
      .def("wrote", [](Storage& self, int64_t offset, const GeometryRef& geometry, const py::object& version, const py::object& digests, bool expected) {
            const Content content = contents_python::content_of(digests);
            self.wrote(offset, geometry, version_from(version), digests.is_none() ? nullptr : &content, expected);
          },
          py::arg("offset"), py::arg("geometry"), py::arg("version").none(true), py::arg("digests").none(true), py::kw_only(),
          py::arg("expected") = false);
}

}  // namespace storages_python

inline void bind_storages(pybind11::module_& module) {
  namespace py = pybind11;
  using namespace storages_python;
  bind_geometry(module);
  bind_storage(module);
  py::class_<Storages, std::shared_ptr<Storages>>(module, "Storages")
      .def_property_readonly("foreign_on_device", [](const Storages& self) { return self.foreign_on_device.load(); })
      .def(py::init([](py::function next_seq, std::shared_ptr<Texts> texts) {
             auto held = std::make_shared<Held>(std::move(next_seq));
             const auto call = [held] {
               py::gil_scoped_acquire gil;
               return held->get()().cast<int64_t>();
             };
             return std::make_shared<Storages>(call, std::move(texts));
           }),
           py::arg("next_seq"), py::arg("texts"))
      // Of a native session: no Python to be asked.
      .def(py::init([](std::shared_ptr<Outbox> outbox) {
             auto texts = outbox->shared_texts();
             return std::make_shared<Storages>([outbox] { return static_cast<int64_t>(outbox->next_seq()); }, std::move(texts));
           }),
           py::arg("outbox"))
      .def("of", [](Storages& self, const py::object& tensor, int64_t seq) { return self.hold(self.of(tensor_of(tensor), seq)); },
           py::arg("tensor"), py::arg("seq"))
      .def("known", [](const Storages& self, const py::object& tensor) {
            // As the address of no storage: for who asks about tensors of any kind.
            (void)tensor_of(tensor).storage();
            return self.hold(self.known(tensor_of(tensor)));
          },
          py::arg("tensor"))
      .def("resized", [](const Storages& self, const py::object& storage) {
             self.resized(reinterpret_cast<c10::StorageImpl*>(storage.attr("_cdata").cast<uintptr_t>()));
           },
           py::arg("storage"))
      .def("shared", [](const Storages& self, const py::object& storage) {
             self.shared(reinterpret_cast<c10::StorageImpl*>(storage.attr("_cdata").cast<uintptr_t>()));
           },
           py::arg("storage"))
      .def_property_readonly("seq", &Storages::seq)
      .def("tick", [](const Storages&) { return Storage::next_tick(); })
      .def("__len__", &Storages::size)
      .def("poll", [](Storages& self, int64_t seq) { return lifetimes(self.poll(seq)); }, py::arg("seq"))
      .def("poll_packed", [](Storages& self, int64_t seq) { return packed(self.poll(seq)); }, py::arg("seq"))
      .def("living", &Storages::living)
      .def("forget_written", &Storages::forget_written)
      .def("forget_unseen", [](const Storages& self, const py::list& tensors, int64_t since) {
             for (const py::handle& each : tensors) {
               const at::Tensor& tensor = tensor_of(each);
               Storage* record = is_plain(tensor) ? self.known(tensor) : nullptr;
               if (record != nullptr && record->tick.load(std::memory_order_relaxed) < since) record->forget_written();
             }
           },
           py::arg("tensors"), py::arg("since"))
      .def("forget_older", &Storages::forget_older, py::arg("since"))
      .def("forget_gradients", &Storages::forget_gradients)
      .def("close", [](Storages& self) { return lifetimes(self.close()); })
      // What `RankContext.abandon_in_child` sets.
      .def_property("_lock", [](const Storages&) { return py::none(); }, [](Storages& self, const py::object&) { self.new_lock(); });
}

}  // namespace opguard
