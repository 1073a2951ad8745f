// What to do with one operator: the plan that operators.py has made of its schema, as plain data. Mirrors operators.py.
//
// Python makes every plan (tables.py and the allowlist stay the only source); this file copies it once per operator and session.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "texts.h"

namespace opguard {

// operators.Handling, and what is no event for us at all.
enum class Handling : int8_t { event, collective, wait, view, metadata, drop };

// Codes of "<prefix>.0", "<prefix>.1", ... for the items of a list argument.
class ItemPaths {
 public:
  ItemPaths(Texts& texts, std::string prefix) : texts_(&texts), prefix_(std::move(prefix)) {
    for (auto& code : codes_) code.store(NO_TEXT, std::memory_order_relaxed);
  }

  Code of(size_t index) const {
    if (index >= codes_.size()) return texts_->slot.of(prefix_ + '.' + std::to_string(index));
    Code known = codes_[index].load(std::memory_order_relaxed);
    if (known == NO_TEXT) {
      known = texts_->slot.of(prefix_ + '.' + std::to_string(index));
      codes_[index].store(known, std::memory_order_relaxed);
    }
    return known;
  }

 private:
  Texts* texts_;
  std::string prefix_;
  mutable std::array<std::atomic<Code>, 1024> codes_;
};

// One schema argument or result that holds tensors: operators.TensorArgument.
struct TensorArgument {
  size_t position = 0;
  Code path = NO_TEXT, written_path = NO_TEXT;
  bool nested = false, reads = true, writes = false, declared = false;
  int64_t when = -1;  // position of the bool argument that must be true for an undeclared write
  std::shared_ptr<ItemPaths> items, written_items;
  Code undeclared_path = NO_TEXT;  // where a write that nobody declared is told: "mut." and the rest of `path`
  std::shared_ptr<ItemPaths> undeclared_items;
};

// Whether a value is a Python number that the program gave in a tensor's place: a dispatch mode gets the number back.
// Source: torch/csrc/jit/python/pybind_utils.cpp, toPyObject.
inline bool is_number(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// How a value of one schema type becomes text; see canonical.h.
enum class Writing : int8_t { plain, dtype, layout, memory_format, dtype_number };

// One schema argument without tensors: operators.PlainArgument.
struct PlainArgument {
  size_t position = 0;
  std::string prefix;        // "name="
  std::string default_text;  // "" for a tensor's place
  Writing writing = Writing::plain;
};

// One result that is a new tensor, or a list of them.
struct Result {
  size_t position = 0;
  Code path = NO_TEXT;
  bool garbage = false;
  std::shared_ptr<ItemPaths> items;
};

// operators.OperatorPlan.
struct OperatorPlan {
  c10::OperatorName name{"", ""};
  std::string qualified, operator_text;
  Code operator_ = NO_TEXT, kind = kinds::OPERATOR;
  Handling handling = Handling::drop;
  bool composite = false, has_own_kernels = false, random = false, makes_nodes_to_leave_alone = false, resizes = false;
  bool uninitialised = false, shape_only = false, trusted = false, foreign = false;
  bool slow = false;  // Python's engine observes it
  std::string reason;  // what an entry into Python for it is counted as: "slow:aten.add.Tensor"
  std::vector<TensorArgument> tensors;
  std::vector<PlainArgument> plain;
  std::vector<Result> returns;
  size_t num_arguments = 0, num_returns = 0;
  size_t positional = 0;    // arguments before the first keyword-only one
  int64_t device = -1;      // position of the keyword argument "device"
  int64_t non_blocking = -1;  // position of the argument "non_blocking"
  pybind11::object python;  // the plan itself, for the slow path; until `OperatorPlans::let_go`

  // Whether the caller said that a copy need not be there when the call returns.
  bool is_asynchronous(c10::ArrayRef<c10::IValue> values) const {
    return non_blocking >= 0 && values[static_cast<size_t>(non_blocking)].isBool() && values[static_cast<size_t>(non_blocking)].toBool();
  }
  bool writes_any() const {
    for (const auto& argument : tensors) {
      if (argument.writes) return true;
    }
    return false;
  }
};

inline Writing writing_of(const c10::Argument& argument) {
  const auto& type = argument.real_type();
  auto is = [&](c10::TypeKind kind) {
    if (type->kind() == kind) return true;
    auto optional = type->cast<c10::OptionalType>();
    return optional && optional->getElementType()->kind() == kind;
  };
  if (is(c10::TypeKind::ScalarTypeType)) return Writing::dtype;
  if (is(c10::TypeKind::LayoutType)) return Writing::layout;
  if (is(c10::TypeKind::MemoryFormatType)) return Writing::memory_format;
  // Source: canonical._DTYPE_ARGUMENTS.
  const auto& name = argument.name();
  return name == "dtype" || name == "input_dtype" || name == "out_dtype" ? Writing::dtype_number : Writing::plain;
}

// Copy a plan of operators.py. With the GIL. Throws if it has a form that we do not know.
inline std::unique_ptr<OperatorPlan> plan_from(Texts& texts, const c10::OperatorHandle& op, const pybind11::object& made) {
  namespace py = pybind11;
  auto plan = std::make_unique<OperatorPlan>();
  const auto& schema = op.schema();
  plan->name = op.operator_name();
  plan->num_arguments = schema.arguments().size();
  plan->num_returns = schema.returns().size();
  plan->positional = plan->num_arguments;
  while (plan->positional > 0 && schema.arguments()[plan->positional - 1].kwarg_only()) --plan->positional;
  for (size_t i = plan->positional; i < plan->num_arguments; ++i) {
    if (schema.arguments()[i].name() == "device") plan->device = static_cast<int64_t>(i);
  }
  const auto handling = made.attr("handling").attr("value").cast<std::string>();
  const std::pair<const char*, Handling> kinds_of[] = {{"event", Handling::event}, {"collective", Handling::collective}, {"wait", Handling::wait},
                                                        {"view", Handling::view},   {"metadata", Handling::metadata},     {"drop", Handling::drop}};
  bool found = false;
  for (const auto& [text, value] : kinds_of) {
    if (handling == text) plan->handling = value, found = true;
  }
  if (!found) throw std::runtime_error("unknown handling " + handling);
  plan->composite = made.attr("composite").cast<bool>();
  plan->has_own_kernels = made.attr("has_own_kernels").cast<bool>();
  plan->python = made;
  if (!py::hasattr(made, "qualified")) return plan;  // `OperatorPlans.unreadable`
  plan->qualified = made.attr("qualified").cast<std::string>();
  plan->operator_text = made.attr("operator").cast<std::string>();
  plan->operator_ = texts.operator_.of(plan->operator_text);
  plan->kind = texts.kind.of(made.attr("kind").cast<std::string>());
  plan->reason = "slow:" + plan->operator_text;
  plan->random = made.attr("random").cast<bool>();
  plan->makes_nodes_to_leave_alone = made.attr("makes_nodes_to_leave_alone").cast<bool>();
  plan->resizes = made.attr("resizes").cast<bool>();
  plan->uninitialised = made.attr("uninitialised").cast<bool>();
  plan->shape_only = made.attr("shape_only").cast<bool>();
  plan->trusted = made.attr("trusted").cast<bool>();
  plan->foreign = plan->qualified.rfind("aten::", 0) != 0;
  plan->slow = plan->handling == Handling::collective || plan->handling == Handling::wait;
  std::unordered_map<std::string, int64_t> by_name;
  for (size_t i = 0; i < plan->num_arguments; ++i) by_name.emplace(schema.arguments()[i].name(), static_cast<int64_t>(i));
  if (const auto found = by_name.find("non_blocking"); found != by_name.end()) plan->non_blocking = found->second;
  for (const auto& item : made.attr("tensors")) {
    TensorArgument argument;
    argument.position = item.attr("position").cast<size_t>();
    const auto path = item.attr("path").cast<std::string>(), written = item.attr("written_path").cast<std::string>();
    const auto undeclared = "mut." + path.substr(path.find('.') + 1);
    argument.path = texts.slot.of(path);
    argument.written_path = texts.slot.of(written);
    argument.undeclared_path = texts.slot.of(undeclared);
    argument.nested = item.attr("nested").cast<bool>();
    argument.reads = item.attr("reads").cast<bool>();
    argument.writes = item.attr("writes").cast<bool>();
    argument.declared = item.attr("declared").cast<bool>();
    const auto when = item.attr("when").cast<std::string>();
    if (!when.empty()) argument.when = by_name.at(when);
    if (argument.nested) {
      argument.items = std::make_shared<ItemPaths>(texts, path);
      argument.written_items = std::make_shared<ItemPaths>(texts, written);
      argument.undeclared_items = std::make_shared<ItemPaths>(texts, undeclared);
      // A list of lists: rare, and its paths have one number more.
      if (schema.arguments()[argument.position].type()->str().find("[][]") != std::string::npos) plan->slow = true;
    }
    plan->tensors.push_back(std::move(argument));
  }
  for (const auto& item : made.attr("plain")) {
    PlainArgument argument;
    argument.position = item.attr("position").cast<size_t>();
    argument.prefix = item.attr("name").cast<std::string>() + "=";
    argument.default_text = utf8(item.attr("default_text"));
    argument.writing = writing_of(schema.arguments()[argument.position]);
    plan->plain.push_back(std::move(argument));
  }
  const py::object garbage = made.attr("garbage");
  for (const auto& item : made.attr("returns")) {
    Result result;
    result.position = item.cast<size_t>();
    const auto path = "out." + std::to_string(result.position);
    result.path = texts.slot.of(path);
    result.items = std::make_shared<ItemPaths>(texts, path);
    result.garbage = garbage.contains(item);
    plan->returns.push_back(std::move(result));
  }
  return plan;
}

// Plans by operator; made at first sight. Looking one up takes no lock.
class OperatorPlans {
 public:
  OperatorPlans() : table_(new Table(kFirstSize)) {}

  // The plan of an operator, null if it has not been made yet. Cost: about 10 ns.
  const OperatorPlan* of(const c10::OperatorHandle& op) const {
    const size_t key = std::hash<c10::OperatorHandle>()(op);
    const Table* table = table_.load(std::memory_order_acquire);
    for (size_t at = mixed(key) & table->mask;; at = (at + 1) & table->mask) {
      const Slot& slot = table->slots[at];
      const OperatorPlan* plan = slot.plan.load(std::memory_order_acquire);
      if (plan == nullptr) return nullptr;
      // An operator may have gone and another taken its address.
      if (slot.key == key && plan->name == op.operator_name()) return plan;
    }
  }

  const OperatorPlan* add(const c10::OperatorHandle& op, std::unique_ptr<OperatorPlan> plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const OperatorPlan* known = of(op)) return known;
    Table* table = table_.load(std::memory_order_relaxed);
    if (2 * (count_ + 1) > table->slots.size()) {
      auto* larger = new Table(2 * table->slots.size());
      for (const auto& slot : table->slots) {
        if (const OperatorPlan* moved = slot.plan.load(std::memory_order_relaxed)) larger->put(slot.key, moved);
      }
      tables_.emplace_back(larger);  // readers may still be in the smaller ones
      table_.store(larger, std::memory_order_release);
      table = larger;
    }
    const OperatorPlan* made = plans_.emplace_back(std::move(plan)).get();
    table->put(std::hash<c10::OperatorHandle>()(op), made);
    ++count_;
    return made;
  }

  // With the GIL: keep no plan of Python's any more. Who is inside an operator finds None instead.
  void let_go() {
    std::vector<pybind11::object> left;  // let go of after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& plan : plans_) left.push_back(std::exchange(plan->python, pybind11::none()));
  }

 private:
  static constexpr size_t kFirstSize = 1 << 10;

  static size_t mixed(size_t key) { return (key * 0x9E3779B97F4A7C15ull) >> 20; }

  struct Slot {
    size_t key = 0;
    std::atomic<const OperatorPlan*> plan{nullptr};
  };
  struct Table {
    explicit Table(size_t size) : slots(size), mask(size - 1) {}
    void put(size_t key, const OperatorPlan* plan) {
      size_t at = mixed(key) & mask;
      while (slots[at].plan.load(std::memory_order_relaxed) != nullptr) at = (at + 1) & mask;
      slots[at].key = key;
      slots[at].plan.store(plan, std::memory_order_release);
    }
    std::vector<Slot> slots;
    size_t mask;
  };

  std::atomic<Table*> table_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<std::unique_ptr<OperatorPlan>> plans_;
  std::mutex mutex_;
  size_t count_ = 0;
};

}  // namespace opguard
