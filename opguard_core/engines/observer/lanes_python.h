// Lanes as Python sees them: the attributes and methods of lanes.Lane and lanes.Lanes.
#pragma once

#include <pybind11/pybind11.h>

#include "lanes.h"

namespace opguard {

namespace detail {

// Python's number of an autograd node: AccumulateGrad's is the largest that 64 bits hold, which is -1 for us.
inline int64_t node_number(const pybind11::int_& number) { return static_cast<int64_t>(PyLong_AsUnsignedLongLongMask(number.ptr())); }

// A lane and what observes its thread refer to one another, so the garbage collector is told. While C++ holds the lane as well,
// what it refers to is in use and nothing is said of it.
inline bool held_by_python_alone(PyObject* self) {
  if (!pybind11::detail::is_holder_constructed(self)) return false;
  return pybind11::cast<Lane&>(pybind11::handle(self)).weak_from_this().use_count() == 1;
}

}  // namespace detail

inline void bind_lanes(pybind11::module_& module) {
  namespace py = pybind11;

  py::class_<ForwardOf>(module, "ForwardOf")
      .def("__len__", &ForwardOf::size)
      .def("__contains__", [](const ForwardOf& self, const py::int_& node) { return self.get(detail::node_number(node)).has_value(); })
      .def("get", [](const ForwardOf& self, const py::int_& node) -> py::object {
        const auto maker = self.get(detail::node_number(node));
        if (!maker) return py::none();
        return py::make_tuple(maker->seq, *maker->operator_);
      });

  py::class_<CreateGraph>(module, "CreateGraph")
      .def("append", &CreateGraph::append)
      .def("pop", &CreateGraph::pop)
      .def("__len__", &CreateGraph::size)
      .def("__getitem__", [](const CreateGraph& self, int64_t index) {
        const auto size = static_cast<int64_t>(self.size());
        const int64_t place = index < 0 ? index + size : index;
        if (place < 0 || place >= size) throw py::index_error("list index out of range");
        return self.at(static_cast<size_t>(place));
      });

  py::class_<Backwards>(module, "Backwards")
      .def(
          "begin",
          [](Backwards& self, int64_t task, const py::tuple& place) {
            const auto row = [&](size_t at) { return place[at].is_none() ? int64_t{-1} : place[at].cast<int64_t>(); };
            self.begin(task, {row(0), row(1), row(2)});
          },
          py::arg("task"), py::arg("place"))
      .def("end", &Backwards::end)
      .def(
          "place",
          [](const Backwards& self, int64_t task) -> py::object {
            const auto place = self.place(task);
            if (!place) return py::none();
            const auto row = [](int64_t value) -> py::object { return value < 0 ? py::object(py::none()) : py::object(py::int_(value)); };
            return py::make_tuple(row(place->stack), row(place->user_frame), row(place->library_frame));
          },
          py::arg("task"));

  py::class_<Lane, std::shared_ptr<Lane>>(module, "Lane", py::custom_type_setup([](PyHeapTypeObject* made) {
                                            auto* const type = &made->ht_type;
                                            type->tp_flags |= Py_TPFLAGS_HAVE_GC;
                                            type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
                                              Py_VISIT(Py_TYPE(self));
                                              if (!detail::held_by_python_alone(self)) return 0;
                                              const auto& lane = py::cast<Lane&>(py::handle(self));
                                              Py_VISIT(lane.modules_.ptr());
                                              Py_VISIT(lane.mode_.ptr());
                                              return 0;
                                            };
                                            type->tp_clear = [](PyObject* self) {
                                              if (!detail::held_by_python_alone(self)) return 0;
                                              auto& lane = py::cast<Lane&>(py::handle(self));
                                              lane.modules_ = py::list();
                                              lane.mode_ = py::none();
                                              return 0;
                                            };
                                          }))
      .def(py::init([](const std::string& role) { return std::make_shared<Lane>(role, std::make_shared<Words>()); }), py::arg("role"))
      .def_property(
          "role", [](const Lane& self) { return self.role().text; },
          [](Lane& self, const std::string& role) { self.role_.store(self.words_->of(role)); })
      .def_property(
          "path", [](const Lane& self) { return self.path().text; },
          [](Lane& self, const std::string& path) { self.path_.store(self.words_->of(path)); })
      .def_property_readonly("index",
                             [](const Lane& self) -> py::object {
                               return self.index() < 0 ? py::object(py::none()) : py::object(py::int_(self.index()));
                             })
      .def_property(
          "root_grad", [](const Lane& self) { return self.root_grad(); }, [](Lane& self, bool on) { self.root_grad_.store(on); })
      .def_property(
          "muted", [](const Lane& self) { return self.muted(); }, [](Lane& self, bool on) { self.muted_.store(on); })
      .def_property(
          "aside", [](const Lane& self) { return self.aside_.load(); }, [](Lane& self, bool on) { self.aside_.store(on); })
      .def_property(
          "away", [](const Lane& self) { return self.away_.load(); }, [](Lane& self, bool on) { self.away_.store(on); })
      .def_property(
          "last_node", [](const Lane& self) { return self.last_node.load(); },
          [](Lane& self, int64_t number) { self.last_node.store(number); })
      .def_property(
          "microbatches", [](const Lane& self) { return self.microbatches_.load(); },
          [](Lane& self, int64_t count) { self.microbatches_.store(count); })
      .def_property(
          "counted_in", [](const Lane& self) { return self.counted_in_.load(); },
          [](Lane& self, int64_t window) { self.counted_in_.store(window); })
      .def_property_readonly("num_events", [](const Lane& self) { return self.num_events.load(); })
      .def_readonly("forward_of", &Lane::forward_of)
      .def_readonly("create_graph", &Lane::create_graph_)
      .def_property_readonly("backwards", [](Lane& self) -> Backwards& { return self.backwards; }, py::return_value_policy::reference_internal)
      .def_readwrite("modules", &Lane::modules_)
      .def_readwrite("mode", &Lane::mode_)
      .def("come_back", &Lane::come_back)
      .def("microbatch", &Lane::microbatch, py::arg("window"))
      .def("count_microbatch", &Lane::count_microbatch, py::arg("window"))
      .def(
          "link",
          [](Lane& self, const py::int_& node, int64_t seq, const std::string& qualified) {
            self.link(detail::node_number(node), seq, self.words_->of(qualified)->text);
          },
          py::arg("node"), py::arg("seq"), py::arg("operator"));

  py::class_<Lanes, std::shared_ptr<Lanes>>(module, "Lanes")
      .def(py::init<>())
      .def("current", &Lanes::current)
      .def("enter", [](Lanes& self, const std::string& role) { return self.enter(role); }, py::arg("role"))
      .def("leave", &Lanes::leave)
      .def("number", &Lanes::number, py::arg("lane"))
      .def_property_readonly("all",
                             [](const Lanes& self) {
                               py::list found;
                               for (const auto& lane : self.all()) found.append(lane);
                               return found;
                             })
      // What `RankContext.abandon_in_child` gives its holders; ours is of C++.
      .def_property("_lock", [](const Lanes&) { return py::none(); }, [](Lanes& self, const py::object&) { self.new_lock(); });

  module.def("carry_lane", &carry_lane, py::arg("lane"));
  module.def("put_down_lane", &put_down_lane);
  module.def("carried_lane", []() -> py::object {
    Lane* const lane = carried_lane();
    return lane == nullptr ? py::object(py::none()) : py::cast(lane->shared_from_this());
  });
}

}  // namespace opguard
