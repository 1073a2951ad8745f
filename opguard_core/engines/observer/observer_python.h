// What Python sees of the observer.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "mode.h"
#include "views.h"

namespace opguard {

inline void bind_observer(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("register_observer", [] {
    register_observer();
    register_views();
  });
  module.def("set_boundary_function", [](uintptr_t address) { set_boundary.store(reinterpret_cast<SetBoundary>(address)); }, py::arg("address"));
  module.def("set_included", &set_included, py::arg("wanted"));
  module.def("is_included", &is_included);
  module.attr("COMES_BEFORE_PYTHON") = COMES_BEFORE_PYTHON;
  py::class_<Observer, std::unique_ptr<Observer, py::nodelete>>(module, "Observer")
      // Never freed: an operator may be inside it on any thread. Empty once stopped.
      .def(py::init([](const py::dict& parts) { return std::unique_ptr<Observer, py::nodelete>(new Observer(parts)); }), py::arg("parts"))
      .def("start", &Observer::start)
      .def("stop", &Observer::stop)
      .def("emitted", &Observer::emitted)
      .def("mark", [](Observer& self, const py::str& name, const py::str& args, const py::str& phase) {
            return self.mark(utf8(name), utf8(args), utf8(phase));
          },
          py::arg("operator"), py::arg("args"), py::arg("phase"))
      .def("entered", &Observer::entered, py::arg("reason"))
      .def("digest_of_generator", [](Observer& self, const py::object& generator) {
            if (!THPGenerator_Check(generator.ptr())) throw py::type_error("not a generator");
            return self.digest_of(reinterpret_cast<THPGenerator*>(generator.ptr())->cdata);
          },
          py::arg("generator"))
      .def("entries", &Observer::entries)
      .def_property_readonly("num_events", &Observer::num_events)
      .def_property_readonly("num_launches", &Observer::num_launches)
      .def_property_readonly("num_delegated", [](const Observer& self) { return self.num_delegated.load(); })
      .def_property_readonly("num_uncounted", [](const Observer& self) { return self.num_uncounted(); })
      .def_property("dead", [](const Observer& self) { return self.dead.load(); }, [](Observer& self, bool dead) { self.dead.store(dead); })
      .def_property("outside_stopped", [](const Observer& self) { return self.outside_stopped.load(); },
                    [](Observer& self, bool stopped) { self.outside_stopped.store(stopped); })
      .def_property("nodes_to_leave_alone", [](const Observer& self) { return self.nodes_to_leave_alone.load(); },
                    [](Observer& self, bool there) { self.nodes_to_leave_alone.store(there); });
}

}  // namespace opguard
