"""Callables for C++ that do not keep what they call: a cycle through an object of C++ is one that Python's collector cannot see."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., Any], gone: Any = None) -> Callable[..., Any]:
    """A bound method as a function that does not keep its object.

    Args:
        method: Of an object that lives as long as its calls matter.
        gone: What the function returns once the object is gone.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = reference()
        return gone if found is None else found(*args, **kwargs)

    return call
