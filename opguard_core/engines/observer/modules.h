// Calls of modules: the path of the innermost open one. Mirrors Hooks.enter_module and leave_module of hooks.py for what happens
// thousands of times: a module whose path is known, called inside another. Everything else is Python's.
#pragma once

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "lanes.h"
#include "names.h"

namespace opguard {

class ModuleCalls {
 public:
  // enter, leave: `Hooks.enter_module` and `Hooks.leave_module`, which never raise.
  ModuleCalls(std::shared_ptr<Lanes> lanes, std::shared_ptr<StateNames> names, pybind11::function enter, pybind11::function leave)
      : lanes_(std::move(lanes)), names_(std::move(names)), enter_(std::move(enter)), leave_(std::move(leave)) {}

  // Call `original` as it was called, between `enter` and `leave`. With the GIL; null with Python's error set. Cost: about 0.1 us.
  PyObject* call(PyObject* original, PyObject* const* args, size_t num_flagged, PyObject* keywords) {
    const Py_ssize_t num_args = PyVectorcall_NARGS(num_flagged);
    Known known;
    if (num_args > 0 && names_->settled) {
      try {
        known = enter_known(args[0]);
      } catch (pybind11::error_already_set&) {
        // Python finds the same, and counts it.
      }
    }
    if (known.lane == nullptr) return call_between(original, args, num_args, keywords);
    PyObject* const result = PyObject_Vectorcall(original, args, num_flagged, keywords);
    known.lane->path_.store(known.above);
    PyObject* const open = known.lane->modules_.ptr();
    const Py_ssize_t size = PyList_Check(open) ? PyList_GET_SIZE(open) : 0;
    if (size > 0) {
      // Letting go of the module may run a finaliser: not with the program's error set.
      const pybind11::error_scope kept;
      PyList_SetSlice(open, size - 1, size, nullptr);
    }
    return result;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(enter_.ptr());
    Py_VISIT(leave_.ptr());
    return 0;
  }

  static void bind(pybind11::module_& module);

 private:
  struct Known {
    std::shared_ptr<Lane> lane;  // null: Python has to see it
    Word* above = nullptr;
  };

  Known enter_known(PyObject* module) {
    std::shared_ptr<Lane> lane = lanes_->current();
    if (lane == nullptr || !PyList_Check(lane->modules_.ptr()) || PyList_GET_SIZE(lane->modules_.ptr()) == 0) return {};
    Word* const path = names_->word_of(module, *lane->words_);
    if (path == nullptr) return {};
    if (PyList_Append(lane->modules_.ptr(), module) != 0) throw pybind11::error_already_set();
    Word* const above = &lane->path();
    lane->path_.store(path);
    return {std::move(lane), above};
  }

  // As `shims.around`.
  PyObject* call_between(PyObject* original, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
    namespace py = pybind11;
    try {
      py::tuple given(static_cast<size_t>(num_args));
      for (Py_ssize_t at = 0; at < num_args; ++at) given[static_cast<size_t>(at)] = py::reinterpret_borrow<py::object>(args[at]);
      py::dict named;
      const Py_ssize_t num_named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
      for (Py_ssize_t at = 0; at < num_named; ++at) named[PyTuple_GET_ITEM(keywords, at)] = py::handle(args[num_args + at]);
      const py::object token = enter_(given, named);
      auto result = py::reinterpret_steal<py::object>(PyObject_Call(original, given.ptr(), named.ptr()));
      if (result) {
        leave_(token, true);
      } else {
        const py::error_scope kept;
        leave_(token, false);
      }
      return result.release().ptr();
    } catch (py::error_already_set& error) {
      error.restore();
      return nullptr;
    }
  }

  const std::shared_ptr<Lanes> lanes_;
  const std::shared_ptr<StateNames> names_;
  const pybind11::function enter_, leave_;
};

namespace detail {

// What a shim calls in the place of `original`.
struct ModuleCall {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* original;
  std::shared_ptr<ModuleCalls>* calls;

  static PyObject* called(PyObject* self, PyObject* const* args, size_t num_flagged, PyObject* keywords) {
    auto* const made = reinterpret_cast<ModuleCall*>(self);
    return (*made->calls)->call(made->original, args, num_flagged, keywords);
  }
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    auto* const made = reinterpret_cast<ModuleCall*>(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(made->original);
    return made->calls != nullptr && made->calls->use_count() == 1 ? (*made->calls)->visit(visit, arg) : 0;
  }
  static void dealloc(PyObject* self) {
    auto* const made = reinterpret_cast<ModuleCall*>(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(made->original);
    delete made->calls;
    PyTypeObject* const type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
  }

  static PyTypeObject* type() {
    static PyTypeObject* const made = [] {
      static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(ModuleCall, vectorcall), READONLY, nullptr},
                                      {nullptr, 0, 0, 0, nullptr}};
      static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
                                    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                    {Py_tp_members, members},
                                    {0, nullptr}};
      static PyType_Spec spec = {"opguard_observer.ModuleCall", sizeof(ModuleCall), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
      auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
      if (type == nullptr) throw pybind11::error_already_set();
      return type;
    }();
    return made;
  }
};

}  // namespace detail

// A callable that does what `original` does, known to `calls`.
inline pybind11::object around(std::shared_ptr<ModuleCalls> calls, const pybind11::object& original) {
  PyTypeObject* const type = detail::ModuleCall::type();
  PyObject* const made = type->tp_alloc(type, 0);  // zeroed
  if (made == nullptr) throw pybind11::error_already_set();
  auto* const call = reinterpret_cast<detail::ModuleCall*>(made);
  call->vectorcall = &detail::ModuleCall::called;
  call->original = Py_NewRef(original.ptr());
  call->calls = new std::shared_ptr<ModuleCalls>(std::move(calls));
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

inline void ModuleCalls::bind(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<ModuleCalls, std::shared_ptr<ModuleCalls>>(module, "ModuleCalls")
      .def(py::init<std::shared_ptr<Lanes>, std::shared_ptr<StateNames>, py::function, py::function>(), py::arg("lanes"), py::arg("names"),
           py::arg("enter"), py::arg("leave"))
      .def("around", [](std::shared_ptr<ModuleCalls> self, const py::object& original) { return around(std::move(self), original); },
           py::arg("original"));
}

}  // namespace opguard
