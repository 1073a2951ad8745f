// Views without boxing. Two of three operators that reach our key are views, which give no event: for the common ones a kernel of their
// own type stands on the key, which does what `observe` would and goes on without making boxes of the arguments. All else, and whatever
// is not the plain case (modes, subclasses, an operator whose plan is something else), goes to `observe`.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mode.h"

namespace opguard {

template <class Op, class Schema = typename Op::schema>
struct ViewKernel;

template <class Op, class Return, class... Args>
struct ViewKernel<Op, Return(Args...)> {
  static Return call(c10::DispatchKeySet keys, Args... args) {
    Observer* const observer = Observer::active();
    if (observer == nullptr || observer->dead.load(std::memory_order_relaxed) || hides_from_modes()) {
      return Op::redispatch(keys & BELOW_OBSERVER, std::forward<Args>(args)...);
    }
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    Lane* const lane = c10::impl::TorchDispatchModeTLS::any_modes_set() || keys.has(c10::DispatchKey::Python) ? nullptr : carried_lane();
    if (lane == nullptr || lane->muted() || !is_view(*observer, op)) {
      static const c10::KernelFunction boxed = c10::KernelFunction::makeFromBoxedFunction<&observe>();
      return boxed.template call<Return, Args...>(op, keys, std::forward<Args>(args)...);
    }
    c10::impl::ExcludeDispatchKeyGuard hidden(ABOVE_OBSERVER);  // as in `Observer::run`
    observer->see_view(*lane);
    return Op::redispatch(keys & BELOW_OBSERVER, std::forward<Args>(args)...);
  }

 private:
  static bool is_view(const Observer& observer, const c10::OperatorHandle& op) {
    static std::atomic<uint64_t> known{0};  // the session whose plan says so
    if (known.load(std::memory_order_relaxed) == observer.session) return true;
    const bool now = observer.passes_as_view(op);
    if (now) known.store(observer.session, std::memory_order_relaxed);
    return now;
  }
};

// An operator that this torch does not have, or has with another schema, is left to the fallback.
template <class Op>
void add_view(torch::Library& library) {
  if (!c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name})) return;
  const std::string name = std::string(Op::name) + (*Op::overload_name == 0 ? "" : ".") + Op::overload_name;
  library.impl(name.c_str(), torch::CppFunction(TORCH_FN((ViewKernel<Op>::call))));
}

// Stays for the life of the process, as the fallback does.
inline void register_views() {
  static std::unique_ptr<torch::Library> library;
  if (library) return;
  auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", OBSERVER_KEY, __FILE__, __LINE__);
  add_view<at::_ops::view>(*made);
  add_view<at::_ops::t>(*made);
  add_view<at::_ops::transpose_int>(*made);
  add_view<at::_ops::detach>(*made);
  add_view<at::_ops::alias>(*made);
  add_view<at::_ops::expand>(*made);
  add_view<at::_ops::permute>(*made);
  add_view<at::_ops::select_int>(*made);
  add_view<at::_ops::slice_Tensor>(*made);
  add_view<at::_ops::split_Tensor>(*made);
  add_view<at::_ops::split_with_sizes>(*made);
  add_view<at::_ops::squeeze>(*made);
  add_view<at::_ops::squeeze_dim>(*made);
  add_view<at::_ops::unbind_int>(*made);
  add_view<at::_ops::unsqueeze>(*made);
  add_view<at::_ops::as_strided>(*made);
  add_view<at::_ops::_unsafe_view>(*made);
  library = std::move(made);
}

}  // namespace opguard
