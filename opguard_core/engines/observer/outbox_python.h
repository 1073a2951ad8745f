// What Python sees of the outbox: the attributes and methods of outbox.py's classes, so that markers, state and the slow path use
// it as they use that; and the writer's side, trace/batch.ColumnSource.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "drain.h"
#include "outbox.h"

namespace opguard {
namespace outbox_python {

namespace py = pybind11;

// A callback that takes the GIL and never throws: it belongs to nobody's call.
inline std::function<void()> callback(py::object function) {
  auto held = std::make_shared<Held>(std::move(function));
  return [held] {
    py::gil_scoped_acquire gil;
    if (PyObject* answer = PyObject_CallNoArgs(held->get().ptr())) Py_DECREF(answer);
    else PyErr_WriteUnraisable(held->get().ptr());
  };
}

inline bool is_promise(py::handle row) {
  return PyTuple_Check(row.ptr()) && PyTuple_GET_SIZE(row.ptr()) == 19 && !PyLong_Check(PyTuple_GET_ITEM(row.ptr(), 13));
}

// The row of a slot whose `mix64` is a promise, with a cell in the promise's place.
inline SlotRow promised_slot(Texts& texts, py::handle row, uint64_t seq) {
  py::tuple plain(19);
  for (Py_ssize_t at = 0; at < 19; ++at) plain[static_cast<size_t>(at)] = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(row.ptr(), at));
  for (size_t at : {13, 14, 15, 16}) plain[at] = py::int_(0);
  plain[17] = py::bool_(false);
  SlotRow slot = slot_of(texts, plain, seq);
  slot.content.cell = c10::make_intrusive<Cell>(seq, slot.nbytes, slot.storage == NO_NUMBER || slot.name != EMPTY_TEXT);
  return slot;
}

inline void close(Outbox& outbox, const EntryRef& entry, py::handle event, py::handle slots) {
  EventRow row;
  SlotRows rows;
  std::vector<Promised> promised;
  std::string error;
  try {
    row = event_of(outbox.texts(), event);
    if (row.seq != entry->seq) throw py::value_error("an event carries the seq of another");
    for (py::handle slot : py::reinterpret_borrow<py::iterable>(slots)) {
      if (is_promise(slot)) {
        promised.push_back({entry, rows.size(), std::make_shared<Held>(py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(slot.ptr(), 13)))});
        rows.push_back(promised_slot(outbox.texts(), slot, entry->seq));
      } else {
        rows.push_back(slot_of(outbox.texts(), slot, entry->seq));
      }
    }
  } catch (const std::exception& failure) {
    // As the row path has it: what does not fit its columns is lost alone, and counted.
    error = failure.what();
    if (error.empty()) error = "a value does not fit its column";
  }
  py::gil_scoped_release released;
  if (!error.empty()) return outbox.lose(entry, Loss::encode, "ValueError: " + error);
  outbox.close(entry, std::move(row), std::move(rows));
  if (!promised.empty()) outbox.promise(std::move(promised));  // after: they are found by the slots they belong to
}

inline py::list finish(Outbox& outbox, const py::object& unfinished) {
  std::vector<EntryRef> left;
  {
    py::gil_scoped_release released;
    left = outbox.finish([&](const EntryRef& entry) {
      py::gil_scoped_acquire gil;
      try {
        return event_of(outbox.texts(), unfinished(entry));
      } catch (py::error_already_set& failure) {
        throw std::runtime_error(failure.what());
      }
    });
  }
  py::list answer;
  for (const EntryRef& entry : left) {
    bool names_state = entry->names_state;
    if (entry->gathered) {
      // Its operator may still be adding to them.
      for (py::handle slot : py::tuple(py::reinterpret_borrow<py::object>(entry->gathered->get()))) {
        names_state = names_state || py::cast<bool>(py::bool_(slot.attr("name")));
      }
    }
    answer.append(py::make_tuple(entry, names_state));
  }
  return answer;
}

// Digests from the tuple `fingerprint.digest.Digests`. With the GIL.
inline Digests digests_of(py::handle tuple) {
  return {tuple.attr("mix64").cast<uint64_t>(), tuple.attr("value64").cast<uint64_t>(), tuple.attr("bag64").cast<uint64_t>(),
          tuple.attr("xor32").cast<uint32_t>(), tuple.attr("trivial").cast<bool>(),      tuple.attr("nbytes").cast<uint64_t>()};
}

// Python's failures inside are ours: told to `Outbox::failed`, and false. With the GIL.
template <class Work>
bool guarded(Outbox& outbox, const py::object& seq, const Work& work) {
  try {
    work();
    return true;
  } catch (py::error_already_set& error) {
    if (outbox.failed) py::reinterpret_borrow<py::object>(outbox.failed->get())(error.value(), seq);
  } catch (const std::exception& error) {
    if (outbox.failed) py::reinterpret_borrow<py::object>(outbox.failed->get())(py::module_::import("builtins").attr("ValueError")(error.what()), seq);
  }
  return false;
}

// What has come of a promise of probe/promised.py.
struct Outcome {
  enum State : uint8_t { open, kept, lost, nothing } state = open;
  bool perhaps = false, undeclared = false;  // of a `Difference`: a loss hides whether there was one; as its `undeclared`
  Digests digests;
  uint64_t t_device_ns = 0;
};

inline Outcome outcome_of(py::handle promise) {
  Outcome outcome;
  const py::object found = promise.attr("look")();
  if (found.is_none()) return outcome;
  outcome.perhaps = py::hasattr(promise, "undeclared");
  if (py::hasattr(found, "mix64")) {
    outcome.state = Outcome::kept;
    outcome.digests = digests_of(found);
    const py::object time = promise.attr("t_device_ns");
    outcome.t_device_ns = time.is_none() ? 0 : time.cast<uint64_t>();
    outcome.undeclared = outcome.perhaps && promise.attr("undeclared").cast<bool>();
  } else {
    outcome.state = py::hasattr(found, "reason") ? Outcome::lost : Outcome::nothing;
  }
  return outcome;
}

// Whether every event has its digests: waits for devices, until nothing has arrived for so long; then gives the rest up.
inline bool wait_for_digests(Outbox& outbox, double patience_s) {
  auto last = std::chrono::steady_clock::now();
  std::pair<size_t, size_t> before{SIZE_MAX, SIZE_MAX};
  while (true) {
    const size_t promised = outbox.look_at_promises();
    if (promised != 0 && outbox.wait_for_promise(nullptr, DEVICE_POLL)) outbox.look_at_promises();
    {
      py::gil_scoped_release released;
      const std::pair<size_t, size_t> left{outbox.look_for_digests(), promised};
      if (left.first == 0) return true;
      const auto now = std::chrono::steady_clock::now();
      if (left != before) last = now;
      before = left;
      if (std::chrono::duration<double>(now - last).count() <= patience_s) continue;
      outbox.give_up();
    }
    outbox.forget_promises();
    return false;
  }
}

}  // namespace outbox_python

inline size_t Outbox::look_at_promises() {
  namespace py = pybind11;
  // Whatever waits here or not: others have asked, too, and the launcher keeps only so many records for them.
  outbox_python::guarded(*this, py::none(), [&] {
    if (collect) py::reinterpret_borrow<py::object>(collect->get())();
  });
  if (num_promised() == 0) return 0;
  std::vector<Promised> open;
  {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    open.swap(promised_);
  }
  std::vector<Promised> left;
  for (Promised& one : open) {
    outbox_python::Outcome outcome;
    const CellRef cell = cell_of(one);
    if (!cell) continue;  // its event was lost
    const auto seq = py::int_(cell->seq);
    if (!outbox_python::guarded(*this, seq, [&] { outcome = outbox_python::outcome_of(one.promise->get()); })) outcome.state = outbox_python::Outcome::lost;
    if (outcome.state == outbox_python::Outcome::open) {
      left.push_back(std::move(one));
      continue;
    }
    std::lock_guard<std::mutex> lock(sync_->mutex);
    Content* content = one.cell ? nullptr : &one.entry->slots[one.slot].content;
    if (outcome.state == outbox_python::Outcome::lost) {
      if (outcome.perhaps && content != nullptr) content->unless = ready_cell(*cell);  // `hides`
      cell->lose();
    } else {
      if (outcome.state == outbox_python::Outcome::nothing && content != nullptr) content->unless = cell;  // a difference from itself
      if (outcome.state == outbox_python::Outcome::kept && outcome.undeclared) count_undeclared_write();
      cell->keep(outcome.digests, outcome.t_device_ns);
    }
  }
  std::lock_guard<std::mutex> lock(sync_->mutex);
  for (Promised& one : left) promised_.push_back(std::move(one));
  num_promised_.store(promised_.size());
  return promised_.size();
}

inline bool Outbox::wait_for_promise(const Cell* cell, std::chrono::duration<double> pause) {
  namespace py = pybind11;
  std::shared_ptr<Held> found;
  {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    for (auto one = promised_.rbegin(); one != promised_.rend() && !found; ++one) {
      if (cell == nullptr || cell_of(*one).get() == cell) found = one->promise;
    }
  }
  if (!found) return false;
  return outbox_python::guarded(*this, py::none(), [&] { py::reinterpret_borrow<py::object>(found->get()).attr("wait")(pause.count()); });
}

inline void Outbox::forget_promises() {
  std::vector<Promised> open;  // let go of after the lock: they hold Python objects
  std::lock_guard<std::mutex> lock(sync_->mutex);
  open.swap(promised_);
  num_promised_.store(0);
}

inline void Outbox::bind(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Entry, EntryRef>(module, "Entry")
      .def_readonly("seq", &Entry::seq)
      .def_property_readonly("operator", [](const Entry& self) { return self.outbox->texts().operator_.text(self.operator_); })
      .def_property_readonly("lane", [](const Entry& self) { return self.lane; })
      // Not None once complete.
      .def_property_readonly("event", [](const Entry& self) -> py::object { return self.closed ? py::object(py::bool_(true)) : py::none(); })
      .def_property("slots", [](const Entry& self) -> py::object {
            return self.gathered ? py::reinterpret_borrow<py::object>(self.gathered->get()) : py::object(py::tuple());
          },
          [](Entry& self, py::object rows) { self.gathered = std::make_shared<Held>(std::move(rows)); })
      .def_property("unblock", [](const Entry& self) -> py::object {
            return self.unblock ? py::cpp_function(self.unblock) : py::object(py::none());
          },
          [](const EntryRef& self, py::object function) {
            std::function<void()> made;
            if (!function.is_none()) made = outbox_python::callback(std::move(function));
            self->outbox->set_unblock(self, std::move(made));
          });
  py::class_<Outbox, std::shared_ptr<Outbox>>(module, "Outbox")
      .def(py::init<std::shared_ptr<Texts>, int64_t, bool>(), py::arg("texts"), py::arg("budget_bytes") = int64_t{64} << 20,
           py::arg("wait_when_full") = true)
      .def("open", [](Outbox& self, const py::str& name, std::shared_ptr<Lane> lane) {
            return self.open(self.texts().operator_.code(utf8(name)), std::move(lane));
          },
          py::arg("operator") = "opguard.unfinished", py::arg("lane") = py::none(), py::keep_alive<0, 1>())
      .def("close", &outbox_python::close, py::arg("entry"), py::arg("event"), py::arg("slots"))
      .def("settle", [](Outbox& self) { py::gil_scoped_release released; self.settle(); })
      .def("finish", &outbox_python::finish, py::arg("unfinished"))
      .def_property_readonly("next_seq", &Outbox::next_seq)
      .def_property_readonly("oldest_open", &Outbox::oldest_open)
      .def_property_readonly("num_late", &Outbox::num_late)
      .def_property_readonly("texts", &Outbox::shared_texts)
      // What `RankContext.abandon_in_child` sets.
      .def_property("_lock", [](const Outbox&) { return py::none(); }, [](Outbox& self, const py::object&) { self.abandon_in_child(); })
      .def("take_lost_slots", &Outbox::take_lost_slots)
      .def_property_readonly("num_undeclared_writes", &Outbox::num_undeclared_writes)
      .def("wait_for_digests", &outbox_python::wait_for_digests, py::arg("patience_s"))
      // collect(): has what arrived delivered to Python's promises. failed(error, seq): a failure of ours. None: no more of either.
      .def("collect_with", [](Outbox& self, py::object call, py::object failed) {
             self.collect = call.is_none() ? nullptr : std::make_shared<Held>(std::move(call));
             self.failed = failed.is_none() ? nullptr : std::make_shared<Held>(std::move(failed));
           },
           py::arg("call").none(true), py::arg("failed").none(true))
      // Wait a while for the promise that fills a cell, and fill it; false if there is none.
      .def("wait_for_promise", [](Outbox& self, const Cell& cell, double timeout_s) {
             const bool found = self.wait_for_promise(&cell, std::chrono::duration<double>(timeout_s));
             self.look_at_promises();
             return found;
           },
           py::arg("cell"), py::arg("timeout_s"))
      // trace/batch.ColumnSource
      .def("attach", &Outbox::attach)
      .def("wait", [](Outbox& self, std::optional<double> timeout_s) {
            py::gil_scoped_release released;
            self.wait(timeout_s.value_or(-1.0));
          },
          py::arg("timeout_s"))
      .def("wake", &Outbox::wake)
      .def("drain", [](Outbox& self, size_t max_events) {
            self.look_at_promises();
            return drain_to_python(self, max_events);
          },
          py::arg("max_events"))
      .def("release", &Outbox::release, py::arg("num_bytes"))
      .def_property_readonly("pressed", &Outbox::pressed)
      .def("take_window_ended", &Outbox::take_window_ended)
      .def("committed", &Outbox::committed)
      .def_property_readonly("num_on_the_way", &Outbox::num_on_the_way)
      .def_property_readonly("held_bytes", &Outbox::held_bytes)
      .def("give_up", &Outbox::give_up)
      .def("shut", &Outbox::shut)
      .def("abandon_in_child", &Outbox::abandon_in_child);
}

}  // namespace opguard
