// Parts of the native observer by themselves, with what a test needs to drive them: cells that it fills by hand, events made by many
// threads without the interpreter lock.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <thread>

#include "lanes_python.h"
#include "outbox.h"
#include "places.h"

namespace py = pybind11;
using namespace opguard;

struct HandCell {
  CellRef cell;
};

// An event as an operator would emit it, from rows that Python made; every slot waits for a cell.
static std::vector<HandCell> close_waiting(Outbox& outbox, const EntryRef& entry, py::handle event, py::handle slots) {
  EventRow row = event_of(outbox.texts(), event);
  SlotRows rows;
  std::vector<HandCell> cells;
  for (py::handle slot : slots) {
    rows.push_back(slot_of(outbox.texts(), slot, entry->seq));
    rows.back().content.cell = c10::make_intrusive<Cell>(entry->seq, rows.back().nbytes, rows.back().name != EMPTY_TEXT);
    cells.push_back({rows.back().content.cell});
  }
  py::gil_scoped_release released;
  outbox.close(entry, std::move(row), std::move(rows));
  return cells;
}

// `num_events` events of `num_slots` slots on each of `num_threads` threads; nanoseconds an event as one thread sees it.
static double emit_many(Outbox& outbox, int num_threads, int num_events, int num_slots) {
  py::gil_scoped_release released;
  Texts& texts = outbox.texts();
  const Code add = texts.operator_.code("aten.add.Tensor"), float32 = texts.dtype.code("float32"), path = texts.slot.code("in.0");
  const Code shape = texts.shape.code("4,8"), strides = texts.strides.code("8,1");
  const auto work = [&] {
    for (int at = 0; at < num_events; ++at) {
      EntryRef entry = outbox.open(add);
      EventRow event;
      event.operator_ = add;
      event.t_host_ns = at;
      SlotRows slots(static_cast<size_t>(num_slots));
      for (SlotRow& slot : slots) {
        slot.slot = path;
        slot.dtype = float32;
        slot.shape = shape;
        slot.strides = strides;
        slot.status = statuses::PROBED;
        slot.storage = 3;
        slot.content.digests = {entry->seq, 2, 3, 4, false, 128};
      }
      outbox.close(entry, std::move(event), std::move(slots));
    }
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int at = 1; at < num_threads; ++at) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / num_events;
}

// Nanoseconds of one `here()` on a stack seen before, without the GIL.
static double time_places(Places& places, int count) {
  py::gil_scoped_release released;
  const auto start = std::chrono::steady_clock::now();
  for (int at = 0; at < count; ++at) places.here();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / count;
}

// The stack number of a thread that Python has never been on; -1 for none.
static int64_t here_on_a_bare_thread(Places& places) {
  py::gil_scoped_release released;
  int64_t found = -2;
  std::thread([&] { found = places.here().stack; }).join();
  return found;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  bind_lanes(module);
  Texts::bind(module);
  Outbox::bind(module);
  Places::bind(module);
  py::class_<HandCell>(module, "HandCell")
      .def("keep", [](HandCell& self, uint64_t mix64, uint64_t t_device_ns) {
        self.cell->keep(Digests{mix64, mix64 + 1, mix64 + 2, 7, true, 16}, t_device_ns);
      })
      .def("lose", [](HandCell& self) { self.cell->lose(); });
  module.def("close_waiting", &close_waiting);
  module.def("emit_many", &emit_many);
  module.def("time_places", &time_places);
  module.def("here_on_a_bare_thread", &here_on_a_bare_thread);
}
