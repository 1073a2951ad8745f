// The slow path: Python's engine observes an operator on the same bookkeeping. And what becomes of failures of ours: the step guard.
#pragma once

#include "observer.h"

namespace opguard {

// A failure of ours becomes a counted gap; returns the text that the GAP event carries.
inline std::string Observer::caught(const std::string& where, int64_t seq) noexcept {
  namespace py = pybind11;
  const std::exception_ptr failure = std::current_exception();
  try {
    Entered python(*this, "caught");
    std::string type = "RuntimeError", what;
    try {
      std::rethrow_exception(failure);
    } catch (py::error_already_set& error) {
      // The program's own interrupt, met while Python worked for us: it comes again as soon as we are gone.
      if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
      type = raised_name(failure, python.kept.type);
      what = py::str(error.value()).cast<std::string>();
    } catch (const c10::Error& error) {
      what = error.what_without_backtrace();
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
      what = "unknown";
    }
    py::object number = py::none();
    if (seq >= 0) number = py::int_(seq);
    return engine_.attr("caught")(where, type, what, number).cast<std::string>();
  } catch (...) {
    num_uncounted_.fetch_add(1);
    return where;
  }
}

// Whether the exception in flight ends the program (`closeup.end`, an exit): the slow path lets it through, as the dispatch engine does.
inline bool ends_the_program() {
  try {
    throw;
  } catch (pybind11::error_already_set& error) {
    pybind11::gil_scoped_acquire gil;
    return !error.matches(PyExc_Exception);
  } catch (...) {
    return false;
  }
}

// Python's engine observes the call, on the same bookkeeping.
inline void Observer::call_slow(const OperatorPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                                Lane& lane) {
  namespace py = pybind11;
  struct Slow {
    py::object lane, call, args, kwargs;
    ~Slow() {
      py::gil_scoped_acquire gil;
      py::error_scope kept;
      lane = call = args = kwargs = py::object();
    }
  } slow;
  try {
    Entered python(*this, plan.reason);
    c10::impl::ExcludeDispatchKeyGuard below(ABOVE_OBSERVER);
    auto [args, kwargs] = python_arguments(plan, op.schema(), torch::jit::last(*stack, plan.num_arguments));
    slow.lane = py::cast(lane.shared_from_this());
    slow.args = args;
    slow.kwargs = kwargs;
    slow.call = engine_.attr("before")(slow.lane, plan.python, slow.args, slow.kwargs);
  } catch (...) {
    if (ends_the_program()) throw;
    caught("before " + plan.operator_text, -1);
  }
  const bool observed = slow.call && !slow.call.is_none();
  try {
    pass(op, keys, stack);
  } catch (...) {
    if (observed && !dead.load(std::memory_order_relaxed)) {
      const std::exception_ptr failure = std::current_exception();
      try {
        py::gil_scoped_acquire gil;
        py::error_scope kept;
        c10::impl::ExcludeDispatchKeyGuard below(ABOVE_OBSERVER);
        engine_.attr("raised")(slow.lane, slow.call, slow.args, slow.kwargs, raised_name(failure, kept.type));
      } catch (...) {
        caught("raised " + plan.operator_text, -1);
      }
    }
    throw;
  }
  if (!observed || dead.load(std::memory_order_relaxed)) return;
  try {
    Entered python(*this, plan.reason);
    c10::impl::ExcludeDispatchKeyGuard below(ABOVE_OBSERVER);
    engine_.attr("after")(slow.lane, slow.call, slow.args, slow.kwargs, python_result(torch::jit::last(*stack, plan.num_returns)));
  } catch (...) {
    if (ends_the_program()) throw;
    caught("after " + plan.operator_text, -1);
  }
}

}  // namespace opguard
