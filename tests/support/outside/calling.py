"""Calls a native function as a rewritten callsite does: through what observes it, if a capture is on."""

from __future__ import annotations

from typing import Any

from opguard_core.capture import session
from opguard_core.engines.extensions import ExtensionCalls
from opguard_core.engines.shims import own


def called(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, observed by the session that is on."""
    if not session._active:
        return function(*args, **kwargs)
    outside = session._active[-1].outside
    calls = ExtensionCalls(outside, None, outside.addresses)
    return _observed(calls, function, args, kwargs)


def _observed(calls: ExtensionCalls, function: Any, args: Any, kwargs: Any) -> Any:
    name = calls.operator_of(function)
    return function(*args, **kwargs) if name is None else calls.call("", name, function, *args, **kwargs)


own(called)
own(_observed)
