"""Small Triton kernels, and what stands for each where there is no card."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from opguard_core.engines.quiet import quiet


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def scale_kernel(x_ptr, n, factor, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x_ptr + at, mask=inside) if not EVEN else tl.load(x_ptr + at)
    tl.store(x_ptr + at, value * factor, mask=inside)


@triton.jit
def faulty_kernel(x_ptr, out_ptr, n, fault_ptr, BLOCK: tl.constexpr):
    """out = 2 x, but for one element when the number at ``fault_ptr``, which is in no one's arguments, says so."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = 2 * tl.load(x_ptr + at, mask=inside)
    wrong = tl.load(fault_ptr) > 0
    tl.store(out_ptr + at, tl.where(wrong & (at == n - 1), value + 0.25, value), mask=inside)


def emulated_add(x: Any, y: Any, out: Any, n: int, *rest: Any) -> None:
    with quiet():
        out.view(-1)[:n].copy_(x.reshape(-1)[:n] + y.reshape(-1)[:n])


def emulated_scale(x: Any, n: int, factor: float, *rest: Any) -> None:
    with quiet():
        x.view(-1)[:n].mul_(factor)
