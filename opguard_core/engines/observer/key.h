// The dispatch key on which operators are observed, and how a call goes on from there.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/library.h>

namespace opguard {

// Unused by torch itself: no fallback is registered on it, no tensor carries it. Below autograd, so it meets exactly the operators
// that a Python dispatch mode meets. Source: c10/core/DispatchKey.h of torch 2.6 to 2.13.
inline constexpr c10::DispatchKey OBSERVER_KEY = c10::DispatchKey::Fake;
inline const c10::DispatchKeySet BELOW_OBSERVER(c10::DispatchKeySet::FULL_AFTER, OBSERVER_KEY);
// What is over when a dispatch mode is called (`after_Python_keyset` in ATen/core/PythonFallbackKernel.cpp): our own code runs as one.
inline const c10::DispatchKeySet ABOVE_PYTHON = c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^
                                                (c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python) |
                                                 c10::DispatchKeySet(c10::DispatchKey::Python));
inline const c10::DispatchKeySet ABOVE_OBSERVER = ABOVE_PYTHON | c10::DispatchKeySet(OBSERVER_KEY);
// Up to torch 2.11 our key comes before Python's, later after it.
inline constexpr bool COMES_BEFORE_PYTHON = static_cast<int>(OBSERVER_KEY) > static_cast<int>(c10::DispatchKey::Python);

// Include or leave out our key on the calling thread; autograd's threads inherit it.
inline void set_included(bool wanted) { c10::impl::tls_set_dispatch_key_included(OBSERVER_KEY, wanted); }
inline bool is_included() { return c10::impl::tls_is_dispatch_key_included(OBSERVER_KEY); }

// Whether a dispatch mode would not be called now, either.
inline bool hides_from_modes() { return c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::Python); }

// Go on with the operator's kernel.
inline void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & BELOW_OBSERVER, stack);
}

// Go on with a dispatch mode or a tensor subclass of the program. The operators that it calls must come back to us: torch's own
// kernel hides every key above Python's from them, so where ours is one of those its place is taken.
inline void pass_to_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if constexpr (COMES_BEFORE_PYTHON) {
    if (keys.has(c10::DispatchKey::Python) && !op.hasKernelForDispatchKey(c10::DispatchKey::Python)) {
      c10::impl::ExcludeDispatchKeyGuard above(ABOVE_PYTHON.remove(OBSERVER_KEY));
      (*getPyInterpreter())->dispatch(op, stack);
      return;
    }
  }
  pass(op, keys, stack);
}

}  // namespace opguard
