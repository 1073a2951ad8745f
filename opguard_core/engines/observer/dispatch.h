// The native observer: every ATen and custom operator as a boundary event, without Python. Mirrors engines/dispatch.py and mode.py.
//
//   operator call -> (autograd) -> `observe`, a boxed fallback kernel on the dispatch key `Fake` -> before -> kernel -> after -> outbox
//
// Runs inside the user's step, on any thread, with or without the GIL: it reads, never writes a tensor, never draws a random number,
// never throws anything of its own. It takes the GIL only where `entries.h` counts it, and holds no lock of ours meanwhile.
#pragma once

#include "observer.h"
#include "standing.h"

namespace opguard {

inline Observer::Observer(const pybind11::dict& parts)
    : parts_(parts),
      engine_(parts["engine"]),
      texts_(parts["texts"].cast<Texts*>()),
      outbox_(parts["outbox"].cast<Outbox*>()),
      storages_(parts["storages"].cast<Storages*>()),
      fingerprints_(parts["fingerprints"].cast<Fingerprints*>()),
      probes_(parts["probes"].cast<Probes*>()),
      places_(parts["places"].cast<Places*>()),
      progress_(parts["progress"].cast<Progress*>()),
      lanes_(parts["lanes"].cast<Lanes*>()),
      verify_(parts["verify"].cast<bool>()) {
  namespace py = pybind11;
  for (const py::handle name : parts["unwritten"]) unwritten_.insert(utf8(name));
  generators_ = std::make_unique<Generators>(
      *texts_, [this](const at::Tensor& state) { return mix64_of_bytes(fingerprints_->twin(), state); },
      [this](const at::Generator& generator) {
        Entered python(*this, "new-generator");
        return engine_.attr("name_of_generator")(py::reinterpret_steal<py::object>(THPGenerator_Wrap(generator))).cast<std::string>();
      });
  outbox_->set_poll([digests = parts["fingerprints"].cast<std::shared_ptr<Fingerprints>>()] {
    if (digests->launcher() != nullptr) digests->cells().poll(*digests->launcher());
  });
  streams_ = std::make_unique<Streams>(*texts_, [this](int32_t device, uintptr_t handle) {
    Entered python(*this, "new-stream");
    return engine_.attr("number_of_stream")(device, handle).cast<int64_t>();
  });
}

inline const OperatorPlan* Observer::plan_of(const c10::OperatorHandle& op) {
  if (const OperatorPlan* known = plans_.of(op)) return known;
  Entered python(*this, "new-operator");
  auto made = plan_from(*texts_, op, engine_.attr("make_plan")(op.operator_name().name, op.operator_name().overload_name));
  made->slow = made->slow || engine_.attr("wants")(made->operator_text).cast<bool>();
  return plans_.add(op, std::move(made));
}

inline bool Observer::is_whole(const OperatorPlan& plan, Values values) const {
  if (!plan.has_own_kernels) return false;
  bool whole = false;
  for (const auto& argument : plan.tensors) {
    each(values[argument.position], argument.path, argument.items.get(), [&](Code, const at::Tensor& tensor) { whole = whole || !is_plain(tensor); });
  }
  return whole;
}

inline void Observer::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, Lane& lane) {
  const OperatorPlan* plan = nullptr;
  try {
    c10::impl::ExcludeDispatchKeyGuard hidden(OBSERVER_KEY);
    plan = plan_of(op);
    const Values values = torch::jit::last(*stack, plan->num_arguments);
    if (plan->composite && !is_whole(*plan, values)) plan = nullptr;
  } catch (...) {
    caught("schema of " + op.operator_name().name, -1);
    c10::impl::ExcludeDispatchKeyGuard hidden(OBSERVER_KEY);
    return pass(op, keys, stack);
  }
  // Inference mode lets composites through whole; the operators inside are the boundaries.
  if (plan == nullptr) return pass(op, keys, stack);
  // The kernel runs as under a dispatch mode: what is inside is hidden from us, and from what is above Python's key.
  c10::impl::ExcludeDispatchKeyGuard hidden(ABOVE_OBSERVER);
  switch (plan->handling) {
    case Handling::drop:
      return pass(op, keys, stack);
    case Handling::view:
      see_view(lane);
      return pass(op, keys, stack);
    case Handling::metadata:
      return plan->resizes ? call_book(*plan, op, keys, stack) : pass(op, keys, stack);
    default:
      break;
  }
  if (plan->makes_nodes_to_leave_alone && c10::GradMode::is_enabled()) nodes_to_leave_alone.store(true);
  if (!progress_->recording()) {
    return plan->uninitialised || plan->writes_any() ? call_book(*plan, op, keys, stack) : pass(op, keys, stack);
  }
  if (plan->slow || plan->is_asynchronous(torch::jit::last(*stack, plan->num_arguments))) return call_slow(*plan, op, keys, stack, lane);
  call_event(*plan, op, keys, stack, lane);
}

inline void Observer::call_event(const OperatorPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                                 Lane& lane) {
  Call call(plan);
  try {
    call.entry = outbox_->open(plan.operator_, lane.shared_from_this());
    call.event.operator_ = plan.operator_;
    const Values values = torch::jit::last(*stack, plan.num_arguments);
    keep_written(plan, values, call.written);
    look(call, lane, op.schema(), values);
  } catch (...) {
    const int64_t seq = call.entry ? static_cast<int64_t>(call.entry->seq) : -1;
    call.failed = caught("before " + plan.operator_text, seq);
    if (!call.entry) return pass(op, keys, stack);
  }
  try {
    InFlight flight(call.entry->seq);
    pass(op, keys, stack);
  } catch (...) {
    if (dead.load(std::memory_order_relaxed)) throw;
    const std::exception_ptr failure = std::current_exception();
    try {
      Entered python(*this, "raised");
      call.args_text += ";raised=" + raised_name(failure, python.kept.type);
    } catch (...) {
      call.args_text += ";raised=RuntimeError";
    }
    try {
      forget_written(call.written, false);
      forget_read(call);
    } catch (...) {
      call.failed = caught("forget " + plan.operator_text, static_cast<int64_t>(call.entry->seq));
    }
    finish_operator(lane, call);
    throw;
  }
  if (dead.load(std::memory_order_relaxed)) return;
  try {
    if (call.failed.empty()) results(call, torch::jit::last(*stack, plan.num_returns));
  } catch (...) {
    call.failed = caught("after " + plan.operator_text, static_cast<int64_t>(call.entry->seq));
  }
  if (!call.failed.empty()) {
    try {
      forget_written(call.written, false);
      forget_read(call);
    } catch (...) {
      call.failed = caught("forget " + plan.operator_text, static_cast<int64_t>(call.entry->seq));
    }
  }
  finish_operator(lane, call);
}

inline void Observer::keep_written(const OperatorPlan& plan, Values values, c10::SmallVectorImpl<Given>& kept) const {
  for (const auto& argument : plan.tensors) {
    if (!argument.writes || values[argument.position].isNone()) continue;
    if (argument.when >= 0) {
      const c10::IValue& flag = values[static_cast<size_t>(argument.when)];
      if (!(flag.isBool() && flag.toBool())) continue;
    }
    kept.push_back({&argument, values[argument.position]});
  }
}

// Rows that a call will have, mostly.
inline size_t num_slots(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> values) {
  size_t count = plan.returns.size();
  for (const auto& argument : plan.tensors) {
    const c10::IValue& value = values[argument.position];
    const size_t tensors = value.isTensor() ? 1 : argument.items && value.isList() ? value.toListRef().size() : 0;
    count += argument.writes ? 2 * tensors : tensors;
  }
  return count;
}

inline void Observer::look(Call& call, Lane& lane, const c10::FunctionSchema& schema, Values values) {
  const OperatorPlan& plan = call.plan;
  EventRow& event = call.event;
  const int64_t seq = static_cast<int64_t>(call.entry->seq);
  const int64_t now = now_ns();
  const bool grad_enabled = c10::GradMode::is_enabled();
  Phase phase = stand(event, lane, grad_enabled);
  const int64_t counter = static_cast<int64_t>(at::sequence_number::peek());
  if (counter != lane.last_node) {
    lane.last_node = counter;
    lane.link(counter - 1, seq, plan.qualified);
  }
  call.slots.rows.reserve(num_slots(plan, values));
  const bool unread = plan.trusted || plan.shape_only;
  bool touched = false;
  std::optional<at::Device> device;
  for (const auto& argument : plan.tensors) {
    const bool reads = argument.reads && !unread;
    const bool consume = !plan.shape_only;
    each(values[argument.position], argument.path, argument.items.get(), [&](Code path, const at::Tensor& tensor) {
      probes_->input(call.slots, seq, path, tensor, reads, consume, plan.trusted && argument.reads);
      if (!device) device = tensor.device();
      if (phase == Phase::unknown) touched = touched || touches_training(tensor, grad_enabled);
    });
  }
  if (phase == Phase::unknown) phase = touched ? (grad_enabled ? Phase::forward : Phase::optimizer) : Phase::data;
  event.phase = static_cast<Code>(phase);
  call.touches_gradient = touched && !grad_enabled;
  bool names_state = false;
  for (const SlotRow& row : call.slots.rows) names_state = names_state || row.name != EMPTY_TEXT;
  call.entry->names_state = names_state;
  if (plan.foreign || (verify_ && names_state)) {
    for (const auto& argument : plan.tensors) {
      if (!argument.writes && !values[argument.position].isNone()) call.others.push_back({&argument, values[argument.position]});
    }
  }
  write_arguments(call.args_text, plan, schema, values, [&](const PlainArgument& argument, const c10::IValue& value) {
    Entered python(*this, "argument");
    const auto name = argument.prefix.substr(0, argument.prefix.size() - 1);
    return utf8(engine_.attr("argument_text")(name, to_python(value, argument.writing)));
  });
  if (plan.random) {
    call.generator = Generators::used_by(plan, values, device);
    if (call.generator.defined()) {
      event.rng_stream = generators_->name(call.generator);
      const auto digest = generators_->digest(call.generator);
      event.has_rng = digest.has_value();
      event.rng_before = digest.value_or(0);
    }
  }
  probes_->launch(call.slots);
  count_on(event, lane, now);
  call.looked = true;
}

inline void Observer::results(Call& call, Values results) {
  const OperatorPlan& plan = call.plan;
  const int64_t seq = static_cast<int64_t>(call.entry->seq);
  const bool reads = !plan.trusted;
  forget_read(call);
  if (call.generator.defined()) {
    // Nothing was drawn: an attention without dropout is marked random, too.
    const auto digest = generators_->digest(call.generator);
    if (digest.has_value() == call.event.has_rng && digest.value_or(0) == call.event.rng_before) {
      call.event.rng_stream = EMPTY_TEXT;
      call.event.has_rng = false;
      call.event.rng_before = 0;
    }
    call.generator = at::Generator();
  }
  for (const auto& result : plan.returns) {
    each(results[result.position], result.path, result.items.get(), [&](Code path, const at::Tensor& tensor) {
      probes_->output(call.slots, seq, path, tensor, !plan.uninitialised && !result.garbage, reads);
      if (call.touches_gradient) mark_gradient(tensor);
    });
  }
  for (const Given& kept : call.written) {
    each(kept.value, kept.argument->written_path, kept.argument->written_items.get(), [&](Code path, const at::Tensor& tensor) {
      probes_->mutated(call.slots, seq, path, tensor, kept.argument->declared, reads);
      if (call.touches_gradient) mark_gradient(tensor);
    });
  }
  if (verify_) find_undeclared_writes(call);
  probes_->launch(call.slots);
}

inline void Observer::call_book(const OperatorPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Values values = torch::jit::last(*stack, plan.num_arguments);
  c10::SmallVector<Given, 2> written;
  keep_written(plan, values, written);
  const c10::IValue first = plan.resizes && !values.empty() ? values[0] : c10::IValue();
  pass(op, keys, stack);
  if (dead.load(std::memory_order_relaxed)) return;
  try {
    keep_book(plan, written, first, torch::jit::last(*stack, plan.num_returns));
  } catch (...) {
    caught("book " + plan.operator_text, -1);
  }
}

inline void Observer::finish_operator(Lane& lane, Call& call) noexcept {
  finish(lane, call, call.plan.operator_text, call.plan.kind);
  num_events_.fetch_add(1, std::memory_order_relaxed);
  emitted();
}

inline bool Observer::mark(const std::string& operator_, std::string args, const std::string& phase) {
  const std::shared_ptr<Lane> lane = lanes_->current();
  if (lane == nullptr) return false;
  const Stack& stack = places_->here();
  EventRow event;
  event.kind = kinds::MARKER;
  event.operator_ = texts_->operator_.of(operator_);
  event.grad_enabled = c10::GradMode::is_enabled();
  if (phase.empty()) {
    const Phase found = phase_of(stack.situation, *lane, event.grad_enabled, torch::autograd::get_current_graph_task_id() != -1);
    event.phase = static_cast<Code>(found == Phase::unknown ? Phase::data : found);
  } else {
    event.phase = texts_->phase.of(phase);
  }
  const EntryRef entry = outbox_->open(texts_->operator_.of("opguard.unfinished"));
  count_on(event, *lane, now_ns());
  name_thread(event, *lane);
  event.stack = stack.stack;
  event.user_frame = stack.user_frame;
  event.library_frame = stack.library_frame;
  event.set_args(*texts_, std::move(args));
  outbox_->close(entry, std::move(event), {});
  return true;
}

inline void Observer::emitted() {
  if (since_poll_.fetch_add(1, std::memory_order_relaxed) + 1 < kPollEvents) return;
  since_poll_.store(0, std::memory_order_relaxed);
  try {
    Entered python(*this, "lifetimes");
    engine_.attr("poll")();
  } catch (...) {
    caught("lifetimes", -1);
  }
}

}  // namespace opguard
