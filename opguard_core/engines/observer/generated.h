// One kernel of a generated module: what is called for it, and what each of its launches does with its arguments. Mirrors launches._Order.
//
// A launch is known by the place it is called from, as in frames.h; Python works out its order once, at first sight. All with the GIL.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frames.h"
#include "kinds.h"
#include "texts.h"

namespace opguard {

// The arguments of one call, as vectorcall hands them over.
struct Arguments {
  PyObject* const* given;
  size_t flagged;
  PyObject* keywords;

  Py_ssize_t size() const { return PyVectorcall_NARGS(flagged); }
  const at::Tensor& tensor(Py_ssize_t index) const { return THPVariable_Unpack(given[index]); }
};

// Which arguments of a launch are read, made and changed, and which are no tensors.
struct LaunchOrder {
  struct Slot {
    Py_ssize_t index;
    Code path;  // "in.N", "out.N" or "mut.N"
    Code told;  // "mut.N": where a write that nobody declared is told
  };
  struct Other {
    Py_ssize_t index;
    std::string name;
  };
  std::vector<Slot> reads, results, changed;
  std::vector<Other> others;
  bool slow = false;  // Python's engine observes it: its text does not say what it changes, or there is nothing that it reads

  // Whether arguments are what they were when this was worked out: plain tensors where there were tensors, and nowhere else.
  bool fits(const Arguments& arguments) const {
    const auto plain = [&](const Slot& slot) {
      return slot.index < arguments.size() && THPVariable_Check(arguments.given[slot.index]) && is_plain(arguments.tensor(slot.index));
    };
    for (const Slot& slot : reads) {
      if (!plain(slot)) return false;
    }
    for (const Slot& slot : results) {
      if (!plain(slot)) return false;
    }
    for (const Other& other : others) {
      if (other.index >= arguments.size() || THPVariable_Check(arguments.given[other.index])) return false;
    }
    return true;
  }
};

class GeneratedKernel {
 public:
  // function: what is called, by its method of that name unless that is "". order: (arguments) -> (reads, results, changed, others), see
  // `Launches.order`; called where the launch is. mutes: operators inside are part of the launch.
  GeneratedKernel(Texts& texts, std::string operator_text, pybind11::object function, const std::string& method, pybind11::object order, bool mutes)
      : operator_text(std::move(operator_text)),
        operator_(texts.operator_.of(this->operator_text)),
        mutes(mutes),
        texts_(texts),
        function_(std::move(function)),
        method_(method.empty() ? pybind11::object() : pybind11::object(pybind11::str(method))),
        order_(std::move(order)) {}

  // As it is, for the program. Null with Python's error set.
  PyObject* call(const Arguments& arguments) const {
    if (!method_) return PyObject_Vectorcall(function_.ptr(), arguments.given, arguments.flagged, arguments.keywords);
    const Py_ssize_t named = arguments.keywords == nullptr ? 0 : PyTuple_GET_SIZE(arguments.keywords);
    c10::SmallVector<PyObject*, 32> given{function_.ptr()};
    given.append(arguments.given, arguments.given + arguments.size() + named);
    return PyObject_VectorcallMethod(method_.ptr(), given.data(), static_cast<size_t>(arguments.size()) + 1, arguments.keywords);
  }

  // What the launch that the calling thread is at does; null if it has not been worked out. Cost: some ns a launch of this kernel's.
  const LaunchOrder* known(const Arguments& arguments) const {
    const Place place = place_here();
    for (const auto& one : orders_) {
      if (one->place == place && one->size == arguments.size()) return &one->order;
    }
    return nullptr;
  }

  // Work it out. Throws what Python raised, and then leaves all launches of this place to Python.
  void learn(const Arguments& arguments) {
    namespace py = pybind11;
    auto one = std::make_unique<Known>();
    one->place = place_here();
    one->size = arguments.size();
    one->code = code_here();
    one->order.slow = true;
    LaunchOrder& order = orders_.emplace_back(std::move(one))->order;
    py::tuple given(static_cast<size_t>(arguments.size()));
    for (Py_ssize_t at = 0; at < arguments.size(); ++at) given[static_cast<size_t>(at)] = py::reinterpret_borrow<py::object>(arguments.given[at]);
    const py::tuple told = order_(given);
    order.reads = slots_of(told[0]);
    order.results = slots_of(told[1]);
    for (const py::handle other : told[3]) order.others.push_back({other[py::int_(1)].cast<Py_ssize_t>(), utf8(other[py::int_(0)])});
    if (told[2].is_none() || order.reads.empty()) return;
    order.changed = slots_of(told[2]);
    order.slow = false;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(function_.ptr());
    Py_VISIT(order_.ptr());
    return 0;
  }

  const std::string operator_text;  // "inductor.<kernel>"
  const Code operator_;
  const bool mutes;

 private:
  using Place = std::pair<uint64_t, uint64_t>;  // code object and instruction, or line where frames cannot be read
  struct Known {
    Place place;
    Py_ssize_t size;
    pybind11::object code;  // kept, so that no other takes its address
    LaunchOrder order;
  };

  static pybind11::object code_here() {
    PyFrameObject* const frame = PyEval_GetFrame();
    return frame == nullptr ? pybind11::object() : pybind11::reinterpret_steal<pybind11::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  }

  static Place place_here() {
    Place place{0, 0};
    if (READS_FRAMES) {
      each_frame([&](uint64_t code, uint64_t instruction) {
        place = {code, instruction};
        return false;
      });
    } else if (PyFrameObject* const frame = PyEval_GetFrame()) {
      place = {reinterpret_cast<uint64_t>(code_here().ptr()), static_cast<uint64_t>(PyFrame_GetLineNumber(frame))};
    }
    return place;
  }

  std::vector<LaunchOrder::Slot> slots_of(pybind11::handle pairs) const {
    namespace py = pybind11;
    std::vector<LaunchOrder::Slot> slots;
    for (const py::handle pair : pairs) {
      const std::string path = utf8(pair[py::int_(0)]);
      slots.push_back({pair[py::int_(1)].cast<Py_ssize_t>(), texts_.slot.of(path), texts_.slot.of("mut" + path.substr(path.find('.')))});
    }
    return slots;
  }

  Texts& texts_;
  const pybind11::object function_, method_, order_;
  std::vector<std::unique_ptr<Known>> orders_;
};

}  // namespace opguard
