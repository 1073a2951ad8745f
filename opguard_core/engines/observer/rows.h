// One event and its slots as they wait to be written: the columns of trace/schema.py with codes for texts.
//
// Mirrors EventRow and SlotRow of trace/schema.py, column by column, in their order.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"
#include "cells.h"
#include "texts.h"

namespace opguard {

inline constexpr int64_t NO_NUMBER = -1;                                      // null in a column without negative numbers
inline constexpr int64_t NO_TIME = std::numeric_limits<int64_t>::min();       // null t_device_ns, null stream
inline constexpr Code MAX_ARGS_TEXTS = 1 << 14;                               // distinct `args` kept for good; others travel with their event

struct SlotRow {
  Code slot = NO_TEXT;
  Code direction = directions::IN;
  Code status = statuses::METADATA;
  Code dtype = NO_TEXT;
  Code shape = EMPTY_TEXT;
  Code strides = EMPTY_TEXT;
  Code device = CPU_DEVICE;
  Code name = EMPTY_TEXT;
  int64_t storage = NO_NUMBER;
  uint64_t extent_lo = 0, extent_hi = 0;
  int64_t version = NO_NUMBER;
  uint64_t nbytes = 0;
  // Final digests, or the cell that will have them; a cell that is lost makes the slot `unreadable`.
  Content content;
  // `seq` is that of the event the slot belongs to.
};

using SlotRows = std::vector<SlotRow, BlockAllocator<SlotRow>>;

struct EventRow {
  uint64_t seq = 0;
  Code kind = kinds::OPERATOR;
  Code operator_ = NO_TEXT;
  int64_t t_host_ns = 0;
  int64_t t_device_ns = NO_TIME;  // left null: taken from the event's own cells
  int64_t stream = NO_TIME;
  Code thread = MAIN_THREAD;
  uint32_t thread_index = 0;
  uint64_t collective_clock = 0;
  uint32_t window = 0;
  uint32_t microbatch = 0;
  Code phase = phases::DATA;
  Code module = EMPTY_TEXT;
  Code node = EMPTY_TEXT;
  int64_t forward_seq = NO_NUMBER;
  int64_t stack = NO_NUMBER;
  int64_t user_frame = NO_NUMBER;
  int64_t library_frame = NO_NUMBER;
  Code args = EMPTY_TEXT;  // NO_TEXT: `args_text` says it
  Code rng_stream = EMPTY_TEXT;
  uint64_t rng_before = 0;
  bool has_rng = false;  // false: `rng_before` is null
  bool grad_enabled = false;
  std::string args_text;

  // Texts of arguments may differ from call to call without end (a learning rate): only so many are kept for good.
  void set_args(Texts& texts, std::string text) {
    args_text.clear();
    args = texts.args.known(text);
    if (args == NO_TEXT && texts.args.size() < MAX_ARGS_TEXTS) args = texts.args.code(text);
    if (args == NO_TEXT) args_text = std::move(text);
  }
};

// Rows from the tuples of trace/schema.py, for markers, state and the slow path. With the GIL.
namespace rows_from_python {

[[noreturn]] inline void refuse(const char* column, const char* why) {
  throw pybind11::value_error(std::string("column ") + column + " " + why);
}

// Reads the values of one tuple in column order.
class Values {
 public:
  Values(pybind11::handle row, Py_ssize_t size) : row_(row) {
    if (!PyTuple_Check(row.ptr()) || PyTuple_GET_SIZE(row.ptr()) != size) throw pybind11::value_error("not a row of this table");
  }

  Code text(Text& column, const char* name) {
    PyObject* value = next();
    if (!PyUnicode_Check(value)) refuse(name, "is no text");
    return column.code(utf8(value));
  }
  std::string free_text(const char* name) {
    PyObject* value = next();
    if (!PyUnicode_Check(value)) refuse(name, "is no text");
    return utf8(value);
  }
  bool truth() { return PyObject_IsTrue(next()) == 1; }
  uint64_t whole(const char* name, uint64_t limit = UINT64_MAX) {
    PyObject* value = next();
    if (value == Py_None) refuse(name, "cannot be null");
    const uint64_t number = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) throw pybind11::error_already_set();
    if (number > limit) refuse(name, "is too large");
    return number;
  }
  int64_t number(const char* name, int64_t null, bool may_be_null = true) {
    PyObject* value = next();
    if (value == Py_None) {
      if (!may_be_null) refuse(name, "cannot be null");
      return null;
    }
    const int64_t number = PyLong_AsLongLong(value);
    if (PyErr_Occurred()) throw pybind11::error_already_set();
    return number;
  }
  bool is_null() const { return PyTuple_GET_ITEM(row_.ptr(), at_) == Py_None; }
  void skip() { ++at_; }

 private:
  PyObject* next() { return PyTuple_GET_ITEM(row_.ptr(), at_++); }
  pybind11::handle row_;
  Py_ssize_t at_ = 0;
};

}  // namespace rows_from_python

// Throws std::exception if a value does not fit its column.
inline EventRow event_of(Texts& texts, pybind11::handle row) {
  rows_from_python::Values values(row, 22);
  EventRow event;
  event.seq = values.whole("seq");
  event.kind = values.text(texts.kind, "kind");
  event.operator_ = values.text(texts.operator_, "operator");
  event.t_host_ns = values.number("t_host_ns", 0, false);
  event.t_device_ns = values.number("t_device_ns", NO_TIME);
  event.stream = values.number("stream", NO_TIME);
  event.thread = values.text(texts.thread, "thread");
  event.thread_index = static_cast<uint32_t>(values.whole("thread_index", UINT32_MAX));
  event.collective_clock = values.whole("collective_clock");
  event.window = static_cast<uint32_t>(values.whole("window", UINT32_MAX));
  event.microbatch = static_cast<uint32_t>(values.whole("microbatch", UINT32_MAX));
  event.phase = values.text(texts.phase, "phase");
  event.module = values.text(texts.module, "module");
  event.node = values.text(texts.node, "node");
  event.forward_seq = values.number("forward_seq", NO_NUMBER);
  event.stack = values.number("stack", NO_NUMBER);
  event.user_frame = values.number("user_frame", NO_NUMBER);
  event.library_frame = values.number("library_frame", NO_NUMBER);
  event.set_args(texts, values.free_text("args"));
  event.rng_stream = values.text(texts.rng_stream, "rng_stream");
  event.has_rng = !values.is_null();
  if (event.has_rng) event.rng_before = values.whole("rng_before");
  else values.skip();
  event.grad_enabled = values.truth();
  return event;
}

// As `event_of`; `seq` must be that of its event.
inline SlotRow slot_of(Texts& texts, pybind11::handle row, uint64_t seq) {
  rows_from_python::Values values(row, 19);
  SlotRow slot;
  if (values.whole("seq") != seq) throw pybind11::value_error("a slot carries the seq of another event");
  slot.slot = values.text(texts.slot, "slot");
  slot.direction = values.text(texts.direction, "direction");
  slot.status = values.text(texts.status, "status");
  slot.dtype = values.text(texts.dtype, "dtype");
  slot.shape = values.text(texts.shape, "shape");
  slot.strides = values.text(texts.strides, "strides");
  slot.device = values.text(texts.device, "device");
  slot.storage = values.number("storage", NO_NUMBER);
  slot.extent_lo = values.whole("extent_lo");
  slot.extent_hi = values.whole("extent_hi");
  slot.version = values.number("version", NO_NUMBER);
  slot.nbytes = values.whole("nbytes");
  Digests& digests = slot.content.digests;
  digests.mix64 = values.whole("mix64");
  digests.value64 = values.whole("value64");
  digests.bag64 = values.whole("bag64");
  digests.xor32 = static_cast<uint32_t>(values.whole("xor32", UINT32_MAX));
  digests.trivial = values.truth();
  digests.nbytes = slot.nbytes;
  slot.name = values.text(texts.name, "name");
  return slot;
}

}  // namespace opguard
