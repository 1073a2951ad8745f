// The native observer of one session: what it is made of. Its parts: dispatch.h (an operator becomes an event), launches.h (the launch of
// a generated kernel does), standing.h (where an event stands), rank.h (what is known of storages), slow_path.h (Python's engine, and
// failures of ours), mode.h (where calls reach it).
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "canonical.h"
#include "entries.h"
#include "here.h"
#include "in_flight.h"
#include "key.h"
#include "lanes.h"
#include "operators.h"
#include "outbox.h"
#include "phases.h"
#include "places.h"
#include "probes.h"
#include "progress.h"
#include "randomness.h"
#include "slow.h"
#include "storages.h"
#include "stream_numbers.h"

namespace opguard {

inline constexpr uint64_t kPollEvents = 512;

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A tensor argument and what the caller gave for it, kept over the call.
struct Given {
  const TensorArgument* argument;
  c10::IValue value;
};

// What has been seen of one call, which will be its event.
struct Seen {
  EntryRef entry;
  EventRow event;
  Slots slots;
  std::string args_text, failed;
  bool touches_gradient = false, looked = false;
};

// One operator in flight: what was seen before it ran. Holds the tensors that it writes, and in mode verify those it may write.
struct Call : Seen {
  explicit Call(const OperatorPlan& plan) : plan(plan) {}
  const OperatorPlan& plan;
  at::Generator generator;
  c10::SmallVector<Given, 2> written;
  c10::SmallVector<Given, 2> others;
};

class GeneratedKernel;  // generated.h
struct Arguments;
struct LaunchOrder;
struct Launched;  // launches.h

class Observer {
 public:
  // parts: texts, outbox, storages, fingerprints, probes, places, progress, lanes (the C++ objects), engine (native.NativeEngine), verify,
  // unwritten (names of operators that return memory which nobody has written).
  explicit Observer(const pybind11::dict& parts);

  // What Python does for us is over: operators pass through from now on, and no object of Python's is kept. With the GIL.
  void stop() {
    active_.store(nullptr);
    engine_ = pybind11::none();
    parts_["engine"] = pybind11::none();
    places_->let_go();
    plans_.let_go();
  }
  void start() { active_.store(this); }
  static Observer* active() { return active_.load(std::memory_order_acquire); }

  // One operator call on an observed thread.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, Lane& lane);

  // The lane that a call outside the dispatcher on this thread belongs to, null if none or if it is not looked at now: `OutsideCalls.watches`
  // and `outside_lane.lane_of`.
  Lane* lane_outside() const;
  // Call a generated kernel, observed as its order says; what it returned, null with Python's error set. With the GIL.
  PyObject* launch(const GeneratedKernel& kernel, const LaunchOrder& order, Lane& lane, const Arguments& arguments);
  // Work out what the launch does that the calling thread is at; Python's engine observes this one.
  void learn(GeneratedKernel& kernel, const Arguments& arguments) noexcept;
  // Memory that no operator handed out: nobody has written there.
  void never_written(const at::Tensor& tensor) noexcept;

  // An event of ours has been emitted by Python's engine: counted as ours are.
  void emitted();
  // Python was entered by another part of ours.
  void entered(const std::string& reason) { entries_.count(reason, progress_->window()); }

  uint64_t num_events() const { return num_events_.load(); }
  uint64_t num_launches() const { return num_launches_.load(); }  // events of generated kernels, which are not among those
  uint64_t num_uncounted() const { return num_uncounted_.load(); }  // failures of ours that could not even be counted as gaps
  pybind11::dict entries() const { return entries_.report(); }

  // A marker where the calling thread stands: markers.event_here and its way into the outbox. phase: "" to take it from the stack.
  // False if the thread has no lane: nothing was done. With the GIL.
  bool mark(const std::string& operator_, std::string args, const std::string& phase);

  // mix64 of a generator's state, see `Generators::digest`.
  std::optional<uint64_t> digest_of(const at::Generator& generator) { return generators_->digest(generator); }

  // Whether an operator is known to be a view that gives no event. Makes no plan.
  bool passes_as_view(const c10::OperatorHandle& op) const {
    const OperatorPlan* const plan = plans_.of(op);
    return plan != nullptr && plan->handling == Handling::view && !plan->composite;
  }
  // A view's own node must not pass for the next operator's. Without gradients it has none: then the newest node is that of the custom
  // function whose forward this is.
  static void see_view(Lane& lane) {
    if (c10::GradMode::is_enabled()) lane.last_node = static_cast<int64_t>(at::sequence_number::peek());
  }

  Texts& texts() const { return *texts_; }

  const uint64_t session = detail::next_session();  // never 0
  std::atomic<bool> dead{false}, nodes_to_leave_alone{false}, outside_stopped{false};  // the last: `OutsideCalls.stop`
  std::atomic<uint64_t> num_delegated{0};

 private:
  using Values = c10::ArrayRef<c10::IValue>;

  const OperatorPlan* plan_of(const c10::OperatorHandle& op);
  bool is_whole(const OperatorPlan& plan, Values values) const;
  void call_event(const OperatorPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, Lane& lane);
  void call_book(const OperatorPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void call_slow(const OperatorPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, Lane& lane);

  void look(Call& call, Lane& lane, const c10::FunctionSchema& schema, Values values);
  void results(Call& call, Values results);
  void find_undeclared_writes(Call& call);
  void forget_written(const c10::SmallVectorImpl<Given>& written, bool wrote);
  void forget_read(const Call& call);
  void keep_book(const OperatorPlan& plan, const c10::SmallVectorImpl<Given>& written, const c10::IValue& first, Values results);
  void finish_operator(Lane& lane, Call& call) noexcept;

  void look_at_launch(Launched& call, Lane& lane);
  void link_launch(Lane& lane, int64_t seq, const std::string& operator_text) const;
  void left_by_launch(Launched& call);
  void left_by_raising(Launched& call);
  void forget_beside(const Location& place) const;
  void forget_launch(const Launched& call, bool has_results, bool wrote);

  Phase stand(EventRow& event, const Lane& lane, bool grad_enabled);
  void count_on(EventRow& event, const Lane& lane, int64_t now) const;
  void name_thread(EventRow& event, Lane& lane) const;
  void finish(Lane& lane, Seen& seen, const std::string& operator_text, Code kind) noexcept;
  std::string caught(const std::string& where, int64_t seq) noexcept;  // inside a catch block
  void keep_written(const OperatorPlan& plan, Values values, c10::SmallVectorImpl<Given>& kept) const;

  bool touches_training(const at::Tensor& tensor, bool grad_enabled) const;
  void mark_gradient(const at::Tensor& tensor) const;

  // Takes the GIL, and counts it. The program's own error, where one is on its way, is put by meanwhile (C++ of torch throws with
  // Python's error indicator set), and none of ours is left behind.
  struct Entered {
    Entered(Observer& observer, const std::string& reason) { observer.entries_.count(reason, observer.progress_->window()); }
    pybind11::gil_scoped_acquire gil;
    pybind11::error_scope kept;
  };

  inline static std::atomic<Observer*> active_{nullptr};

  pybind11::dict parts_;  // keeps alive what the pointers below point to
  pybind11::object engine_;
  Texts* texts_;
  Outbox* outbox_;
  Storages* storages_;
  Fingerprints* fingerprints_;
  Probes* probes_;
  Places* places_;
  Progress* progress_;
  Lanes* lanes_;
  const bool verify_;
  std::unordered_set<std::string> unwritten_;  // operators that return memory which nobody has written
  OperatorPlans plans_;
  std::unique_ptr<Generators> generators_;
  std::unique_ptr<Streams> streams_;
  Entries entries_;
  std::atomic<uint64_t> num_events_{0}, num_launches_{0}, since_poll_{0}, num_uncounted_{0};
};

// Each tensor of an argument or result: (path, tensor).
template <class See>
inline void each(const c10::IValue& value, Code path, const ItemPaths* items, See&& see) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && !is_number(value)) see(path, tensor);
  } else if (items != nullptr && value.isList()) {
    size_t index = 0;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined() && !is_number(item)) see(items->of(index), item.toTensor());
      ++index;
    }
  }
}

}  // namespace opguard
