// The phase of an event, from what its stack says and what gradients are doing. Mirrors phases.py and contexts.Situation.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lanes.h"

namespace opguard {

// contexts.Situation, in its order: the innermost thing a stack is part of.
enum class Situation : int8_t { none, module, function, engine, seeding, recompute, optimizer, data, state };

// ids.Phase, in its order; `unknown` if only the tensors an operator touches can tell.
enum class Phase : int8_t { unknown = -1, data, forward, recompute, backward, collective, optimizer, state, eval };

inline constexpr std::array<const char*, 9> kSituationTexts = {"none",      "module",    "function", "engine", "seeding",
                                                               "recompute", "optimizer", "data",     "state"};
inline constexpr std::array<const char*, 8> kPhaseTexts = {"data",       "forward",   "recompute", "backward",
                                                           "collective", "optimizer", "state",     "eval"};

// Text of a phase as traces write it; never called with `unknown`.
inline const char* phase_text(Phase phase) { return kPhaseTexts[static_cast<size_t>(phase)]; }

// Phase of an operator.
//   situation: from the stack.
//   lane: the thread.
//   grad_enabled: whether gradients are on.
//   in_graph_task: whether the autograd engine is running on this thread; its own threads have no frame of `backward()` on their stack.
inline Phase phase_of(Situation situation, const Lane& lane, bool grad_enabled, bool in_graph_task) {
  switch (situation) {
    case Situation::optimizer:
      return Phase::optimizer;
    case Situation::data:
      return Phase::data;
    case Situation::state:
      return Phase::state;
    case Situation::seeding:
      return Phase::backward;
    case Situation::recompute:
      return Phase::recompute;
    case Situation::module:
      if (in_graph_task) return Phase::recompute;
      return grad_enabled || lane.root_grad() ? Phase::forward : Phase::eval;
    case Situation::function:
    case Situation::none:
      if (!in_graph_task) return situation == Situation::function ? Phase::forward : Phase::unknown;
      [[fallthrough]];
    case Situation::engine:
      // With gradients on and no graph of the backward asked for, someone re-runs a forward by hand.
      return grad_enabled && !lane.graph_is_created() ? Phase::recompute : Phase::backward;
  }
  return Phase::unknown;
}

// Adds phase_of(situation text, lane, grad_enabled, in_graph_task), which returns the text or None as in phases.py.
inline void bind_phases(pybind11::module_& module) {
  namespace py = pybind11;
  module.def(
      "phase_of",
      [](const std::string& situation, const Lane& lane, bool grad_enabled, bool in_graph_task) -> py::object {
        for (size_t place = 0; place < kSituationTexts.size(); ++place) {
          if (situation != kSituationTexts[place]) continue;
          const Phase phase = phase_of(static_cast<Situation>(place), lane, grad_enabled, in_graph_task);
          return phase == Phase::unknown ? py::object(py::none()) : py::object(py::str(phase_text(phase)));
        }
        throw py::value_error("no such situation: " + situation);
      },
      py::arg("situation"), py::arg("lane"), py::arg("grad_enabled"), py::arg("in_graph_task"));
}

}  // namespace opguard
