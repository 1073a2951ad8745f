// How far the training is: completed updates, micro-batches, collectives; what is recorded of it. Mirrors progress.py.
//
// Python (hooks, updates) writes under the GIL; operators read on any thread without it. So every field is atomic on its own,
// and `window` and `recording` always belong to one another's last settling as far as one thread can tell: updates happen
// between operators of the thread that makes them.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace opguard {

class Progress {
 public:
  // steps: window of recorded steps [first, last), none for all. offset: updates done before this run, none if unknown.
  Progress(std::optional<std::pair<int64_t, int64_t>> steps, std::optional<int64_t> offset)
      : steps_(steps), offset_(offset.value_or(0)), offset_given_(offset.has_value()) {
    settle();
  }

  // One counted update has ended.
  void update_done() {
    completed_.fetch_add(1);
    settle();
  }

  // Take the optimizer's own step count as the offset; only before the first update, and only if none was given.
  bool resumed_at(int64_t steps) {
    if (completed_.load() != 0 || offset_given_ || steps <= 0) return false;
    offset_.store(steps);
    settle();
    return true;
  }

  // Where the count of steps begins: "begin", "given", "state" (an optimizer's own), "unknown" (resumed, and nothing tells).
  const char* start() const {
    if (offset_given_) return "given";
    return offset_.load() != 0 ? "state" : loaded_.load() ? "unknown" : "begin";
  }

  // Whether the state at the end of this window is recorded: in the window, and once just before it.
  bool wants_state() const {
    const int64_t now = window();
    return !steps_ || (steps_->first - 1 <= now && now < steps_->second);
  }

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  int64_t window() const { return window_.load(std::memory_order_relaxed); }
  int64_t collectives() const { return collectives_.load(std::memory_order_relaxed); }
  // Number of a collective that begins now; the count goes on.
  int64_t begin_collective() { return collectives_.fetch_add(1); }

  static void bind(pybind11::module_& module);

 private:
  void settle() {
    const int64_t now = completed_.load() + offset_.load();
    window_.store(now);
    recording_.store(!steps_ || (steps_->first <= now && now < steps_->second));
  }

  const std::optional<std::pair<int64_t, int64_t>> steps_;
  std::atomic<int64_t> completed_{0}, offset_, collectives_{0}, window_{0};
  const bool offset_given_;
  std::atomic<bool> loaded_{false}, recording_{true};
};

inline void Progress::bind(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Progress, std::shared_ptr<Progress>>(module, "Progress")
      .def(py::init([](const py::object& steps, const py::object& offset) {
             std::optional<std::pair<int64_t, int64_t>> window;
             std::optional<int64_t> given;
             if (!steps.is_none()) window = {steps[py::int_(0)].cast<int64_t>(), steps[py::int_(1)].cast<int64_t>()};
             if (!offset.is_none()) given = offset.cast<int64_t>();
             return std::make_shared<Progress>(window, given);
           }),
           py::arg("steps"), py::arg("offset"))
      .def("update_done", &Progress::update_done)
      .def("resumed_at", &Progress::resumed_at, py::arg("steps"))
      .def_property_readonly("start", &Progress::start)
      .def_property_readonly("wants_state", &Progress::wants_state)
      .def_property_readonly("window", &Progress::window)
      .def_property_readonly("recording", &Progress::recording)
      .def_property_readonly("offset_given", [](const Progress& self) { return self.offset_given_; })
      .def_property_readonly("completed", [](const Progress& self) { return self.completed_.load(); })
      .def_property_readonly("offset", [](const Progress& self) { return self.offset_.load(); })
      .def_property(
          "collectives", [](const Progress& self) { return self.collectives_.load(); },
          [](Progress& self, int64_t count) { self.collectives_.store(count); })
      .def_property(
          "loaded", [](const Progress& self) { return self.loaded_.load(); },
          [](Progress& self, bool loaded) { self.loaded_.store(loaded); });
}

}  // namespace opguard
