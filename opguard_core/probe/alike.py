"""Whether tensors are what those at their places were: class, dispatch keys, dtype, device, sizes and strides, all at once.

torch has such a check for the guards of compiled code, in C++. It is no public interface, so it is tried before it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from opguard_core.probe.backends import hidden

Check = Callable[..., bool]


def alike(tensors: Sequence[torch.Tensor]) -> Check | None:
    """A check of tensors against these, given one by one; no tensor twice. It keeps none of them alive.

    Args:
        tensors: Plain ones.

    Returns:
        It, or None where torch offers none.

    Cost: 1 us a tensor; the check 0.07 us.
    """
    return _check(tensors) if _is_trusted() else None


def _check(tensors: Sequence[torch.Tensor]) -> Check:
    sizes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
    guards: Any = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Check = guards.check
    return check


@cache
def _is_trusted() -> bool:
    """Whether this torch's check tells apart what we need told apart. Cost: some dozen small tensors, once."""
    with hidden():
        plain, same = _zeros(2, 3), _zeros(2, 3)
        others = (
            _zeros(3, 2),
            _zeros(6),
            _zeros(3, 2).t(),
            _zeros(2, 3, dtype=torch.int32),
            _zeros(2, 3, device="meta"),
            torch._neg_view(_zeros(2, 3)),
            torch.zeros((2, 3), layout=torch.sparse_coo, device="cpu"),
            torch.nn.Parameter(_zeros(2, 3)),
            1.0,
        )
        complex_one = _zeros(2, 3, dtype=torch.complex64)
        try:
            check, check_complex = _check((plain, plain.t())), _check((complex_one,))
            is_right = bool(check(plain, plain.t()) and check(same, same.t()) and check_complex(complex_one))
            return is_right and not any((check_complex(torch._conj(complex_one)), *(check(other, plain.t()) for other in others)))
        except (AttributeError, TypeError, RuntimeError):
            return False


def _zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
