// The launch of a generated kernel becomes an event, without Python. Mirrors `Launches.launch` and what of outside.py it needs.
//
//   kernel(...) in generated code -> the type of launches_python.h -> look -> kernel -> results -> outbox
//
// Runs inside the user's step, with the GIL; never raises anything of its own. What a launch makes and changes is known from the module's
// text, so each such tensor is told (engines/stated.py); an event begins with its launch, since no operator inside is another.
#pragma once

#include <algorithm>
#include <tuple>

#include "generated.h"
#include "observer.h"
#include "standing.h"

namespace opguard {

// The views that one launch has told.
class ToldViews {
 public:
  // Whether a view has not been told yet; it is now.
  bool add(const Location& place) {
    for (const View& one : views_) {
      if (one == View{place.record, place.offset, place.geometry.get()}) return false;
    }
    views_.emplace_back(place.record, place.offset, place.geometry.get());
    return true;
  }

 private:
  using View = std::tuple<const Storage*, int64_t, const Geometry*>;
  c10::SmallVector<View, 8> views_;
};

// One launch in flight.
struct Launched : Seen {
  Launched(const GeneratedKernel& kernel, const LaunchOrder& order, const Arguments& arguments) : kernel(kernel), order(order), arguments(arguments) {}
  const GeneratedKernel& kernel;
  const LaunchOrder& order;
  const Arguments& arguments;
};

// Operators of a thread pass by while it lives.
class Muted {
 public:
  Muted(Lane* lane, const std::atomic<bool>& stopped) : lane_(lane), stopped_(stopped) {
    if (lane_ != nullptr) lane_->mute(true);
  }
  ~Muted() {
    if (lane_ != nullptr && !stopped_.load(std::memory_order_relaxed)) lane_->mute(false);
  }
  Muted(const Muted&) = delete;
  Muted& operator=(const Muted&) = delete;

 private:
  Lane* const lane_;
  const std::atomic<bool>& stopped_;
};

inline Lane* Observer::lane_outside() const {
  if (dead.load(std::memory_order_relaxed) || outside_stopped.load(std::memory_order_relaxed) || active() != this || here().busy) return nullptr;
  Lane* const carried = is_included() ? carried_lane() : nullptr;
  if (carried != nullptr) return carried->muted() ? nullptr : carried;
  const auto own = lanes_->current();  // lives as long as its thread is observed
  return own != nullptr && own->away() ? own.get() : nullptr;
}

inline void Observer::never_written(const at::Tensor& tensor) noexcept {
  try {
    storages_->of(tensor, static_cast<int64_t>(outbox_->next_seq()))->never_written();
  } catch (...) {
    caught("memory handed out", -1);
  }
}

inline PyObject* Observer::launch(const GeneratedKernel& kernel, const LaunchOrder& order, Lane& lane, const Arguments& arguments) {
  Launched call(kernel, order, arguments);
  const bool recording = progress_->recording();
  if (recording) {
    try {
      call.entry = outbox_->open(kernel.operator_, lane.shared_from_this());
      call.event.operator_ = kernel.operator_;
      look_at_launch(call, lane);
    } catch (...) {
      call.failed = caught("before " + kernel.operator_text, call.entry ? static_cast<int64_t>(call.entry->seq) : -1);
      if (!call.entry) return kernel.call(arguments);
    }
  }
  PyObject* returned = nullptr;
  {
    std::optional<InFlight> flight;
    if (recording) flight.emplace(call.entry->seq);
    const KnownAddresses known;
    const Muted muted(kernel.mutes ? &lane : nullptr, outside_stopped);
    returned = kernel.call(arguments);
  }
  if (dead.load(std::memory_order_relaxed)) return returned;
  const pybind11::error_scope kept;
  try {
    if (returned == nullptr && recording) call.args_text += (call.args_text.empty() ? "raised=" : ";raised=") + error_name(kept.type);
    if (!recording || !call.failed.empty()) {
      forget_launch(call, returned != nullptr, !recording);
    } else if (returned == nullptr) {
      left_by_raising(call);
    } else {
      left_by_launch(call);
    }
  } catch (...) {
    call.failed = caught("after " + kernel.operator_text, call.entry ? static_cast<int64_t>(call.entry->seq) : -1);
    try {
      forget_launch(call, false, !recording);
    } catch (...) {
      call.failed = caught("forget " + kernel.operator_text, call.entry ? static_cast<int64_t>(call.entry->seq) : -1);
    }
  }
  if (!recording) return returned;
  if (call.looked) num_launches_.fetch_add(1, std::memory_order_relaxed);
  finish(lane, call, kernel.operator_text, kinds::OPERATOR);
  return returned;
}

inline void Observer::learn(GeneratedKernel& kernel, const Arguments& arguments) noexcept {
  try {
    Entered python(*this, "new-launch");
    kernel.learn(arguments);
  } catch (...) {
    caught("launch of " + kernel.operator_text, -1);
  }
}

// As `OutsideCalls._look`.
inline void Observer::look_at_launch(Launched& call, Lane& lane) {
  const CameWithGil came;
  c10::impl::ExcludeDispatchKeyGuard hidden(ABOVE_OBSERVER);
  const int64_t seq = static_cast<int64_t>(call.entry->seq);
  const int64_t now = now_ns();
  const bool grad_enabled = c10::GradMode::is_enabled();
  Phase phase = stand(call.event, lane, grad_enabled);
  link_launch(lane, seq, call.kernel.operator_text);
  call.slots.rows.reserve(call.order.reads.size() + call.order.results.size() + call.order.changed.size());
  bool touched = false;
  for (const LaunchOrder::Slot& slot : call.order.reads) {
    const at::Tensor& tensor = call.arguments.tensor(slot.index);
    probes_->input(call.slots, seq, slot.path, tensor);
    if (phase == Phase::unknown) touched = touched || touches_training(tensor, grad_enabled);
  }
  probes_->launch(call.slots);
  if (phase == Phase::unknown) phase = touched ? (grad_enabled ? Phase::forward : Phase::optimizer) : Phase::data;
  call.event.phase = static_cast<Code>(phase);
  call.touches_gradient = touched && !grad_enabled;
  for (const SlotRow& row : call.slots.rows) call.entry->names_state = call.entry->names_state || row.name != EMPTY_TEXT;
  for (const LaunchOrder::Other& other : call.order.others) {
    if (!call.args_text.empty()) call.args_text += ';';
    write_python_argument(call.args_text, other.name, call.arguments.given[other.index], [&] {
      Entered python(*this, "argument");
      return utf8(engine_.attr("argument_text")(other.name, pybind11::handle(call.arguments.given[other.index])));
    });
  }
  count_on(call.event, lane, now);
  call.looked = true;
}

// The autograd node that the launch may be the forward of. A function that first makes the memory for its result is better known by the
// launch that fills it.
inline void Observer::link_launch(Lane& lane, int64_t seq, const std::string& operator_text) const {
  const auto counter = static_cast<int64_t>(at::sequence_number::peek());
  if (counter == lane.last_node) {
    const auto maker = lane.forward_of.get(counter - 1);
    if (!maker || unwritten_.count(*maker->operator_) == 0) return;
  }
  lane.link(counter - 1, seq, operator_text);
  lane.last_node = std::max(counter, lane.last_node.load());
}

inline void Observer::left_by_launch(Launched& call) {
  const CameWithGil came;
  c10::impl::ExcludeDispatchKeyGuard hidden(ABOVE_OBSERVER);
  const int64_t seq = static_cast<int64_t>(call.entry->seq);
  ToldViews told;
  for (const LaunchOrder::Slot& slot : call.order.changed) {
    const at::Tensor& tensor = call.arguments.tensor(slot.index);
    const Location place = probes_->locate(tensor, seq);
    if (!told.add(place)) continue;
    forget_beside(place);
    probes_->mutated(call.slots, seq, slot.path, tensor, /*declared=*/false);
    if (call.touches_gradient) mark_gradient(tensor);
  }
  // What it says it leaves alone is looked at again in mode verify only.
  for (size_t at = 0; verify_ && at < call.order.reads.size(); ++at) {
    const LaunchOrder::Slot& slot = call.order.reads[at];
    const at::Tensor& tensor = call.arguments.tensor(slot.index);
    if (call.slots.rows[at].status != statuses::PROBED || !told.add(probes_->locate(tensor, seq))) continue;
    const size_t before = call.slots.rows.size();
    probes_->undeclared(call.slots, seq, slot.told, tensor, at);
    if (call.touches_gradient && call.slots.rows.size() > before) mark_gradient(tensor);
  }
  for (const LaunchOrder::Slot& slot : call.order.results) {
    const at::Tensor& tensor = call.arguments.tensor(slot.index);
    if (!told.add(probes_->locate(tensor, seq))) continue;
    probes_->output(call.slots, seq, slot.path, tensor);
    if (call.touches_gradient) mark_gradient(tensor);
  }
  probes_->launch(call.slots);
}

// A launch that raised: each argument that has changed by then, as `left_by` finds them.
inline void Observer::left_by_raising(Launched& call) {
  const CameWithGil came;
  c10::impl::ExcludeDispatchKeyGuard hidden(ABOVE_OBSERVER);
  const int64_t seq = static_cast<int64_t>(call.entry->seq);
  ToldViews told;
  for (size_t at = 0; at < call.order.reads.size(); ++at) {
    const LaunchOrder::Slot& slot = call.order.reads[at];
    const at::Tensor& tensor = call.arguments.tensor(slot.index);
    const Location place = probes_->locate(tensor, seq);
    const Code status = call.slots.rows[at].status;
    if (status == statuses::UNREADABLE || !told.add(place)) continue;
    forget_beside(place);
    probes_->mutated(call.slots, seq, slot.told, tensor, /*declared=*/false);
    SlotRow& row = call.slots.rows.back();
    const bool was_known = status == statuses::PROBED || status == statuses::CARRIED;
    if (was_known && row.status == statuses::PROBED && !Probes::only_if_changed(row.content, call.slots.rows[at].content, seq)) {
      call.slots.rows.pop_back();
    } else if (call.touches_gradient) {
      mark_gradient(tensor);
    }
  }
  probes_->launch(call.slots);
}

// It may have written beside the view that it was given: carry nothing there.
inline void Observer::forget_beside(const Location& place) const {
  if (place.geometry->span < place.record->nbytes()) place.record->forget_written();
}

// As `OutsideCalls._forget`: carry no digest of what a launch may have written unseen; what it was given to fill counts as filled.
inline void Observer::forget_launch(const Launched& call, bool has_results, bool wrote) {
  const auto forget = [&](const std::vector<LaunchOrder::Slot>& slots) {
    for (const LaunchOrder::Slot& slot : slots) {
      const at::Tensor& tensor = call.arguments.tensor(slot.index);
      Storage* const record = storages_->known(tensor);
      if (record == nullptr) continue;
      record->forget_written();
      if (!wrote) continue;
      const Location place = probes_->locate(tensor, static_cast<int64_t>(outbox_->next_seq()));
      record->wrote(place.offset, place.geometry, kNoVersion, nullptr);
    }
  };
  forget(call.order.reads);
  if (has_results) forget(call.order.results);
}

}  // namespace opguard
