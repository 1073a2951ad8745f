// What stands in a generated module for its kernels and for what hands memory out: types of C, so that a call of one has no frame of ours.
#pragma once

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "launches.h"

namespace opguard {
namespace detail {

// A callable of C that is given out by one session: common to both types.
struct Callable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Observer* observer;  // never freed
  PyObject* python;    // what observes a call that is not for us
};

// Calls one kernel, observed.
struct KernelLaunch {
  Callable base;
  GeneratedKernel* kernel;
  unsigned long long num_seen;    // launches that were observed here
  unsigned long long num_python;  // launches that Python observed

  static PyObject* called(PyObject* object, PyObject* const* given, size_t flagged, PyObject* keywords) {
    auto* const self = reinterpret_cast<KernelLaunch*>(object);
    const Arguments arguments{given, flagged, keywords};
    Lane* const lane = self->base.observer->lane_outside();
    if (lane == nullptr) return self->kernel->call(arguments);
    const LaunchOrder* const order = self->kernel->known(arguments);
    if (order == nullptr) self->base.observer->learn(*self->kernel, arguments);
    // The first launch of a place is Python's in any case: that of a Triton kernel may try several variants.
    if (order == nullptr || order->slow || !order->fits(arguments)) {
      ++self->num_python;
      self->base.observer->entered("generated-kernel");
      return PyObject_Vectorcall(self->base.python, given, flagged, keywords);
    }
    ++self->num_seen;
    return self->base.observer->launch(*self->kernel, *order, *lane, arguments);
  }

  static int visit(PyObject* object, visitproc visit, void* arg) {
    auto* const self = reinterpret_cast<KernelLaunch*>(object);
    return self->kernel == nullptr ? 0 : self->kernel->visit(visit, arg);
  }
  static void release(PyObject* object) { delete std::exchange(reinterpret_cast<KernelLaunch*>(object)->kernel, nullptr); }

  static PyMemberDef* members();
};

// Hands out memory as `allocate` does, and says that nobody has written there.
struct Allocation {
  Callable base;
  PyObject* allocate;

  static PyObject* called(PyObject* object, PyObject* const* given, size_t flagged, PyObject* keywords) {
    auto* const self = reinterpret_cast<Allocation*>(object);
    PyObject* const made = PyObject_Vectorcall(self->allocate, given, flagged, keywords);
    if (made == nullptr || self->base.observer->lane_outside() == nullptr) return made;
    if (THPVariable_Check(made) && is_plain(THPVariable_Unpack(made))) {
      self->base.observer->never_written(THPVariable_Unpack(made));
    } else {
      const pybind11::error_scope kept;
      Py_XDECREF(PyObject_CallOneArg(self->base.python, made));  // never raises
    }
    return made;
  }

  static int visit(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(reinterpret_cast<Allocation*>(object)->allocate);
    return 0;
  }
  static void release(PyObject* object) { Py_CLEAR(reinterpret_cast<Allocation*>(object)->allocate); }

  static PyMemberDef* members();
};

inline PyMemberDef* KernelLaunch::members() {
  static PyMemberDef made[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
                               {"num_seen", T_ULONGLONG, offsetof(KernelLaunch, num_seen), READONLY, nullptr},
                               {"num_python", T_ULONGLONG, offsetof(KernelLaunch, num_python), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};
  return made;
}

inline PyMemberDef* Allocation::members() {
  static PyMemberDef made[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};
  return made;
}

// The Python type of one of the two.
template <class Made>
PyTypeObject* type_of(const char* name) {
  static PyTypeObject* const type = [name] {
    PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(+[](PyObject* self) {
                              PyObject_GC_UnTrack(self);
                              Py_CLEAR(reinterpret_cast<Callable*>(self)->python);
                              Made::release(self);
                              PyTypeObject* const own = Py_TYPE(self);
                              own->tp_free(self);
                              Py_DECREF(own);
                            })},
                           {Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) {
                              Py_VISIT(Py_TYPE(self));
                              Py_VISIT(reinterpret_cast<Callable*>(self)->python);
                              return Made::visit(self, visit, arg);
                            })},
                           {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                           {Py_tp_members, Made::members()},
                           {0, nullptr}};
    PyType_Spec spec = {name, sizeof(Made), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
    auto* const made = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (made == nullptr) throw pybind11::error_already_set();
    return made;
  }();
  return type;
}

inline constexpr const char* KERNEL_LAUNCH = "opguard_observer.KernelLaunch";
inline constexpr const char* ALLOCATION = "opguard_observer.Allocation";

template <class Made>
std::pair<pybind11::object, Made*> make(const char* name, Observer& observer, const pybind11::object& python) {
  PyTypeObject* const type = type_of<Made>(name);
  PyObject* const object = type->tp_alloc(type, 0);  // zeroed
  if (object == nullptr) throw pybind11::error_already_set();
  auto* const callable = reinterpret_cast<Callable*>(object);
  callable->vectorcall = &Made::called;
  callable->observer = &observer;
  callable->python = Py_NewRef(python.ptr());
  return {pybind11::reinterpret_steal<pybind11::object>(object), reinterpret_cast<Made*>(object)};
}

}  // namespace detail

inline void bind_launches(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Here>(module, "Here")  // of whichever thread asks
      .def(py::init<>())
      .def_property("busy", [](const Here&) { return here().busy; }, [](Here&, bool busy) { here().busy = busy; })
      .def_property("known", [](const Here&) { return here().known; }, [](Here&, int64_t known) { here().known = known; });
  module.attr("KernelLaunch") = py::handle(reinterpret_cast<PyObject*>(detail::type_of<detail::KernelLaunch>(detail::KERNEL_LAUNCH)));
  module.attr("Allocation") = py::handle(reinterpret_cast<PyObject*>(detail::type_of<detail::Allocation>(detail::ALLOCATION)));
  // python: observes, and makes, a launch that is not for C++. The others: see `GeneratedKernel`.
  module.def("kernel_launch",
             [](Observer& observer, const std::string& name, py::object function, const std::string& method, const py::object& python, py::object order,
                bool mutes) {
               auto [object, made] = detail::make<detail::KernelLaunch>(detail::KERNEL_LAUNCH, observer, python);
               made->kernel = new GeneratedKernel(observer.texts(), name, std::move(function), method, std::move(order), mutes);
               return object;
             },
             py::arg("observer"), py::arg("operator"), py::arg("function"), py::arg("method"), py::arg("python"), py::arg("order"), py::arg("mutes"));
  // python: is told of memory that is not a plain tensor.
  module.def("allocation",
             [](Observer& observer, const py::object& allocate, const py::object& python) {
               auto [object, made] = detail::make<detail::Allocation>(detail::ALLOCATION, observer, python);
               made->allocate = Py_NewRef(allocate.ptr());
               return object;
             },
             py::arg("observer"), py::arg("allocate"), py::arg("python"));
}

}  // namespace opguard
