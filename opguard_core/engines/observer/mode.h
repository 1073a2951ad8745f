// Where operator calls reach the observer: the kernel of our dispatch key. Mirrors mode.py.
#pragma once

#include "dispatch.h"
#include "rank.h"
#include "slow_path.h"

namespace opguard {

// The kernel of our key.
inline void observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Observer* observer = Observer::active();
  if (observer == nullptr || observer->dead.load(std::memory_order_relaxed) || hides_from_modes()) return pass(op, keys, stack);
  if (c10::impl::TorchDispatchModeTLS::any_modes_set(/*skip_infra_modes=*/true)) return pass_to_python(op, keys, stack);
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    // Only torch's own tracing modes (fake, proxy, functional) are left: nothing real is computed here.
    c10::impl::ExcludeDispatchKeyGuard hidden(OBSERVER_KEY);
    return pass(op, keys, stack);
  }
  if (keys.has(c10::DispatchKey::Python)) {
    // A tensor subclass takes this call apart itself; the operators it calls come back to us.
    observer->num_delegated.fetch_add(1, std::memory_order_relaxed);
    return pass_to_python(op, keys, stack);
  }
  Lane* lane = carried_lane();
  if (lane == nullptr || lane->muted()) {
    c10::impl::ExcludeDispatchKeyGuard hidden(OBSERVER_KEY);
    return pass(op, keys, stack);
  }
  observer->run(op, keys, stack, *lane);
}

// Registers the fallback; stays for the life of the process. Throws with a reason if it cannot be.
inline void register_observer() {
  static std::unique_ptr<torch::Library> library;
  if (library) return;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(OBSERVER_KEY)) {
    throw std::runtime_error("someone else has registered a fallback on the dispatch key Fake");
  }
  auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "_", OBSERVER_KEY, __FILE__, __LINE__);
  made->fallback(torch::CppFunction::makeFromBoxedFunction<&observe>());
  library = std::move(made);
}

}  // namespace opguard
