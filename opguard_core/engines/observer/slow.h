// The way through Python for rare kinds of operator: its arguments as a dispatch mode would get them, and what a call raised.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <exception>
#include <string>
#include <utility>

#include "canonical.h"
#include "operators.h"

// Declared here: its own header brings the whole JIT along. Source: torch/csrc/jit/python/pybind_utils.h.
namespace torch::jit {
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);
}

namespace opguard {

// Source: torch/csrc/autograd/python_variable.cpp, parseIValuesToPyArgsKwargs.
inline pybind11::object to_python(const c10::IValue& value, Writing writing) {
  namespace py = pybind11;
  if (value.isNone()) return py::none();
  if (value.isInt()) {
    if (writing == Writing::dtype) {
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()))));
    }
    if (writing == Writing::layout) {
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<c10::Layout>(value.toInt()))));
    }
    if (writing == Writing::memory_format) {
      return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(value.toInt())));
    }
  }
  return torch::jit::toPyObject(value);
}

// Arguments as a dispatch mode gets them: trailing defaults, and keyword arguments that are defaults, are left out. With the GIL.
inline std::pair<pybind11::tuple, pybind11::dict> python_arguments(const OperatorPlan& plan, const c10::FunctionSchema& schema,
                                                                  c10::ArrayRef<c10::IValue> values) {
  namespace py = pybind11;
  const auto& arguments = schema.arguments();
  size_t given = plan.positional;
  while (given > 0 && is_default(arguments[given - 1], values[given - 1])) --given;
  py::tuple args(given);
  for (size_t i = 0; i < given; ++i) args[i] = to_python(values[i], writing_of(arguments[i]));
  py::dict kwargs;
  for (size_t i = plan.positional; i < arguments.size(); ++i) {
    if (!is_default(arguments[i], values[i])) kwargs[py::str(arguments[i].name())] = to_python(values[i], writing_of(arguments[i]));
  }
  return {std::move(args), std::move(kwargs)};
}

// What a call returned, as Python's caller would get it. With the GIL.
inline pybind11::object python_result(c10::ArrayRef<c10::IValue> results) {
  namespace py = pybind11;
  if (results.empty()) return py::none();
  if (results.size() == 1) return torch::jit::toPyObject(results[0]);
  py::tuple all(results.size());
  for (size_t i = 0; i < results.size(); ++i) all[i] = torch::jit::toPyObject(results[i]);
  return all;
}

// Name of a type of Python's exceptions, without its module.
inline std::string error_name(PyObject* type) {
  const std::string name = type == nullptr ? "RuntimeError" : reinterpret_cast<PyTypeObject*>(type)->tp_name;
  return name.substr(name.rfind('.') + 1);
}

// Name of the Python exception that an operator's failure becomes. With the GIL; leaves the failure as it is. `put_by`: type of the
// error that was set when we came, null for none: a kernel of Python's is left with an empty `python_error` and the error set.
inline std::string raised_name(const std::exception_ptr& failure, PyObject* put_by = nullptr) {
  try {
    std::rethrow_exception(failure);
  } catch (const python_error& error) {
    return error_name(error.type != nullptr ? error.type : put_by);
  } catch (const pybind11::error_already_set& error) {
    return error_name(error.type().ptr());
  } catch (...) {
  }
  torch::translate_exception_to_python(failure);
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const std::string name = error_name(type);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return name;
}

}  // namespace opguard
