// Where in the program an event is, without entering Python for a stack that was seen before. Mirrors places.py.
//
// A stack is known by its (code object, instruction) pairs. Python's `Places` makes rows of each new one, once, and keeps its code
// objects alive, so that no other takes their addresses.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "frames.h"
#include "phases.h"

namespace opguard {

// One interned stack; see places.Stack.
struct Stack {
  int64_t stack = -1;          // row of STACKS, -1 if no Python frame was left
  int64_t user_frame = -1;     // innermost user frame, row of FRAMES
  int64_t library_frame = -1;  // innermost frame if it is deeper than the user's
  Situation situation = Situation::none;
};
inline const Stack NO_STACK{};

class Places {
 public:
  // python: the `Places` (or `NoPlaces`) that makes rows of new stacks.
  explicit Places(pybind11::object python) : none_(!pybind11::hasattr(python, "_intern")), python_(python.release().ptr()) {}
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  ~Places() {
    if (Py_IsInitialized() == 0) return;
    pybind11::gil_scoped_acquire gil;
    Py_DECREF(python_);
  }

  // With the GIL: no stack is new from now on, and the code objects of those that are known may go.
  void let_go() {
    Py_INCREF(Py_None);
    Py_DECREF(std::exchange(python_, Py_None));
  }

  // The stack of the calling thread; lives as long as this object. With or without the GIL; takes it for a new stack only (for every
  // one if `READS_FRAMES` is false). `entered` is set if it did. NO_STACK on a thread without Python frames, as autograd's own are.
  // Throws std::runtime_error if `Places.of` raised.
  // Cost: about 0.1 us and 3 ns a frame once known.
  const Stack& here(bool* entered = nullptr) {
    if (none_) return NO_STACK;
    thread_local FrameKey key;
    const uint64_t hash = read_frames(key);
    if (READS_FRAMES) {
      if (key.empty()) return NO_STACK;
      std::shared_lock<std::shared_mutex> lock(*mutex_);
      if (const Stack* known = find(hash, key)) return *known;
    } else if (PyGILState_GetThisThreadState() == nullptr) {
      return NO_STACK;
    }
    if (entered != nullptr) *entered = true;
    num_entered_.fetch_add(1, std::memory_order_relaxed);
    FrameKey wanted = key;  // Python may run operators while it answers (a finaliser)
    const Stack made = ask();
    std::unique_lock<std::shared_mutex> lock(*mutex_);
    if (!READS_FRAMES) {
      // Told apart by what Python said: nothing else is known of them.
      wanted = {static_cast<uint64_t>(made.stack), static_cast<uint64_t>(made.user_frame), static_cast<uint64_t>(made.library_frame),
                static_cast<uint64_t>(made.situation)};
    }
    const uint64_t at = READS_FRAMES ? hash : static_cast<uint64_t>(made.stack);
    if (const Stack* known = find(at, wanted)) return *known;
    return stacks_.emplace(at, Known{std::move(wanted), made})->second.stack;
  }

  // How often Python was entered.
  uint64_t num_entered() const { return num_entered_.load(std::memory_order_relaxed); }

  // After a fork, in the child: own no lock that a vanished thread may hold.
  void new_lock() {
    (void)mutex_.release();
    mutex_ = std::make_unique<std::shared_mutex>();
  }

  static void bind(pybind11::module_& module);

 private:
  struct Known {
    FrameKey key;
    Stack stack;
  };

  const Stack* find(uint64_t hash, const FrameKey& key) const {
    auto [first, last] = stacks_.equal_range(hash);
    for (; first != last; ++first) {
      if (first->second.key == key) return &first->second.stack;  // never by the hash alone
    }
    return nullptr;
  }

  Stack ask() const {
    namespace py = pybind11;
    py::gil_scoped_acquire gil;
    try {
      PyFrameObject* frame = PyEval_GetFrame();
      py::object innermost = frame == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame));
      const py::object answer = py::handle(python_).attr("of")(innermost);
      const auto number = [&](const char* name) {
        const py::object value = answer.attr(name);
        return value.is_none() ? int64_t{-1} : value.cast<int64_t>();
      };
      Stack stack{number("stack"), number("user_frame"), number("library_frame"), Situation::none};
      const auto situation = answer.attr("situation").attr("value").cast<std::string>();
      for (size_t at = 0; at < kSituationTexts.size(); ++at) {
        if (situation == kSituationTexts[at]) stack.situation = static_cast<Situation>(at);
      }
      return stack;
    } catch (py::error_already_set& error) {
      throw std::runtime_error(std::string("places: ") + error.what());
    }
  }

  const bool none_;
  PyObject* python_;
  std::unique_ptr<std::shared_mutex> mutex_ = std::make_unique<std::shared_mutex>();
  std::unordered_multimap<uint64_t, Known> stacks_;  // nodes stay where they are
  std::atomic<uint64_t> num_entered_{0};
};

inline void Places::bind(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Places, std::shared_ptr<Places>>(module, "Places")
      .def(py::init<py::object>(), py::arg("python"))
      // (stack, user_frame, library_frame, situation) of the caller; `released`: looked up without the GIL.
      .def("here", [](Places& self, bool released) {
            const Stack* stack = nullptr;
            if (released) {
              py::gil_scoped_release gil;
              stack = &self.here();
            } else {
              stack = &self.here();
            }
            const auto number = [](int64_t value) -> py::object { return value < 0 ? py::object(py::none()) : py::object(py::int_(value)); };
            return py::make_tuple(number(stack->stack), number(stack->user_frame), number(stack->library_frame),
                                  kSituationTexts[static_cast<size_t>(stack->situation)]);
          },
          py::arg("released") = true)
      .def_property_readonly("num_entered", &Places::num_entered)
      .def("new_lock", &Places::new_lock)
      .def_property_readonly_static("reads_frames", [](const py::object&) { return READS_FRAMES; })
      .def_property_readonly_static("why", [](const py::object&) { return WHY_NO_FRAMES; });
}

}  // namespace opguard
