// Digests as Python sees them: fingerprint.digest.Digests, or a promise of them (engines/cells.py) while their cell waits.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "cells.h"

namespace opguard {
namespace contents_python {

namespace py = pybind11;

inline py::object plain(const Digests& digests) {
  const py::object made = py::module_::import("opguard_core.fingerprint.digest").attr("Digests");
  return made(digests.mix64, digests.value64, digests.bag64, digests.xor32, digests.trivial, digests.nbytes);
}

inline py::object promise(const CellRef& cell) { return py::module_::import("opguard_core.engines.cells").attr("CellPromise")(cell); }

// Digests if they are there, else their promise; `Known` of probe/promise.py.
inline py::object known_of(const Content& content) {
  if (!content.unless) return content.cell ? promise(content.cell) : plain(content.digests);
  const py::object difference = py::module_::import("opguard_core.probe.promise").attr("Difference");
  return difference(promise(content.unless), promise(content.cell));
}

// The other way round; nothing for None. Throws for a promise that is not one of ours.
inline Content content_of(const py::object& known) {
  Content content;
  if (known.is_none()) return content;
  if (PyTuple_Check(known.ptr())) {
    content.digests = {known.attr("mix64").cast<uint64_t>(), known.attr("value64").cast<uint64_t>(), known.attr("bag64").cast<uint64_t>(),
                       known.attr("xor32").cast<uint32_t>(), known.attr("trivial").cast<bool>(),      known.attr("nbytes").cast<uint64_t>()};
  } else {
    content.cell = known.attr("cell").cast<CellRef>();
  }
  return content;
}

// What came of a cell: None while it waits, False if it is lost, else the digests.
inline py::object look(const Cell& cell) {
  if (cell.state() == Cell::State::waiting) return py::none();
  if (cell.state() == Cell::State::lost) return py::bool_(false);
  return plain(cell.digests());
}

}  // namespace contents_python
}  // namespace opguard
