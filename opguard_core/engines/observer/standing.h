// Where an event stands: its place in the program, its phase, its counters, its thread. The same for operators (dispatch.h), markers and
// launches of generated kernels (launches.h).
#pragma once

#include "observer.h"

namespace opguard {

// Fill in stack, frames and the backward's node and forward; returns the phase, unknown if only the tensors can tell.
inline Phase Observer::stand(EventRow& event, const Lane& lane, bool grad_enabled) {
  bool new_place = false;
  const Stack& stack = places_->here(&new_place);
  if (new_place) entries_.count("new-place", progress_->window());
  const int64_t graph_task = torch::autograd::get_current_graph_task_id();
  const bool in_graph_task = graph_task != -1;
  event.grad_enabled = grad_enabled;
  event.stack = stack.stack;
  event.user_frame = stack.user_frame;
  event.library_frame = stack.library_frame;
  if (in_graph_task && stack.user_frame < 0) {
    if (const auto called = lane.backwards.place(graph_task)) {  // Stack.called_from
      event.user_frame = called->user_frame;
      if (stack.stack < 0) {
        event.stack = called->stack;
        event.library_frame = called->library_frame;
      }
    }
  }
  const Phase phase = phase_of(stack.situation, lane, grad_enabled, in_graph_task);
  if (in_graph_task && phase == Phase::backward) {
    if (const auto node = torch::autograd::get_current_node()) {
      const std::string name = node->name();
      event.node = texts_->node.of(name);
      if (const auto made = lanes_->forward_seq(lane, static_cast<int64_t>(node->sequence_nr()), name)) event.forward_seq = *made;
    }
  }
  return phase;
}

// How far the training is, and the module that is open.
inline void Observer::count_on(EventRow& event, const Lane& lane, int64_t now) const {
  const int64_t window = progress_->window();
  event.t_host_ns = now;
  event.collective_clock = static_cast<uint64_t>(progress_->collectives());
  event.window = static_cast<uint32_t>(window);
  event.microbatch = static_cast<uint32_t>(lane.microbatch(window));
  event.module = lane.path().in(texts_->module);
}

inline void Observer::name_thread(EventRow& event, Lane& lane) const {
  event.thread = lane.role().in(texts_->thread);
  event.thread_index = static_cast<uint32_t>(lane.index() < 0 ? lanes_->number(lane) : lane.index());
}

// Emit what was seen of a call; never throws, and never leaves the events behind it waiting.
inline void Observer::finish(Lane& lane, Seen& seen, const std::string& operator_text, Code kind) noexcept {
  try {
    EventRow& event = seen.event;
    const bool failed = !seen.failed.empty();
    if (!seen.looked) {
      count_on(event, lane, now_ns());
      event.node = EMPTY_TEXT;
      event.forward_seq = NO_NUMBER;
    }
    event.kind = failed ? kinds::GAP : kind;
    name_thread(event, lane);
    event.set_args(*texts_, failed ? std::move(seen.failed) : std::move(seen.args_text));
    event.stream = streams_->of(seen.slots.rows);
    if (failed) seen.slots.rows.clear();
    outbox_->close(seen.entry, std::move(event), std::move(seen.slots.rows));
  } catch (...) {
    const std::string text = caught("event of " + operator_text, static_cast<int64_t>(seen.entry->seq));
    try {
      outbox_->lose(seen.entry, Loss::encode, text);
    } catch (...) {
      num_uncounted_.fetch_add(1);
    }
  }
}

}  // namespace opguard
