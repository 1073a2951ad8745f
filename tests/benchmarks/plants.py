"""Faults of the matrix, planted where neither detector is told: in the kernel, below every dispatch mode.

A kernel is replaced through `torch.library` by one that calls the original and then, at one call of one step, changes
bytes of a result through its raw address. Version counters do not move, no operator is called, nothing is logged. The
replacement stands on both sides, so both run the same code; only the suspect's is armed.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.benchmarks.training import Shape, Training

Kernel = Callable[..., Any]
LSB, EXPONENT, MIDDLE = 0, 26, 20  # bits of a float32


@dataclass(frozen=True)
class KernelFault:
    """A kernel that gives a wrong result once.

    Attributes:
        operator: Qualified name, "aten::addmm".
        call: Which call of it within the step.
        slot: Where the wrong bytes lie, in our names: "out.0", "mut.0.3".
        wrong: Makes the faulty kernel from the original one.
    """

    operator: str
    call: int
    slot: str
    wrong: Callable[[Kernel], Kernel]


@dataclass(frozen=True)
class StrayWrite:
    """Memory of one optimizer state changes between backward and update; no operator is at fault.

    Attributes:
        parameter: Name of the parameter.
        key: Name of its state.
        damage: Changes one tensor.
    """

    parameter: str
    key: str
    damage: Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class Plant:
    """One row of the matrix.

    Attributes:
        title: What the row says.
        fault: What happens, or None: the suspect is as right as the reference, and no alarm is wanted.
        origin: What mode verify should call it.
        step: 0-based step of the fault; negative counts from the end.
        program: Options of `Training` for both sides.
        suspect: Options that only the suspect has.
    """

    title: str
    fault: KernelFault | StrayWrite | None
    origin: str = "operator"
    step: int = 1
    program: dict[str, Any] = field(default_factory=dict)
    suspect: dict[str, Any] = field(default_factory=dict)


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element of a contiguous float32 tensor, behind everybody's back."""
    assert tensor.dtype == torch.float32 and tensor.is_contiguous()
    ctypes.c_uint32.from_address(tensor.data_ptr() + 4 * (element % tensor.numel())).value ^= 1 << bit


def flip_two(tensor: torch.Tensor) -> None:
    """Flip the same bit of two neighbours, which an XOR of all elements does not see."""
    flip(tensor, 1000, MIDDLE)
    flip(tensor, 1001, MIDDLE)


def swap_rows(matrix: torch.Tensor, one: int, other: int) -> None:
    """Exchange two rows of a contiguous matrix, behind everybody's back."""
    assert matrix.is_contiguous() and matrix.dim() == 2
    num_bytes = matrix.shape[1] * matrix.element_size()
    at = [matrix.data_ptr() + row * num_bytes for row in (one, other)]
    rows = [ctypes.string_at(address, num_bytes) for address in at]
    ctypes.memmove(at[0], rows[1], num_bytes)
    ctypes.memmove(at[1], rows[0], num_bytes)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """A copy of a contiguous tensor's bytes, without an operator."""
    assert tensor.is_contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def put_back(tensor: torch.Tensor, old: bytes) -> None:
    """Overwrite a contiguous tensor with earlier bytes, without an operator."""
    ctypes.memmove(tensor.data_ptr(), old, len(old))


class Kernels:
    """Replaced kernels, armed with at most one fault; made by `replaced_kernels`."""

    def __init__(self) -> None:
        self.step = 0
        self.fault: KernelFault | None = None
        self.at_step = -1
        self.struck: int | None = None  # which call of the operator, counted over the whole run
        self._total: Counter[str] = Counter()
        self._in_step: Counter[str] = Counter()

    def arm(self, fault: KernelFault | None, step: int) -> None:
        """Forget what was counted; strike in this step, or never."""
        self.fault, self.at_step, self.struck = fault, step, None
        self._total.clear()
        self.begin(0)

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step = step
        self._in_step.clear()

    def wrap(self, operator: str, original: Kernel) -> Kernel:
        """The replacement of one kernel."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            total, call, fault = self._total[operator], self._in_step[operator], self.fault
            self._total[operator], self._in_step[operator] = total + 1, call + 1
            if fault is None or fault.operator != operator or (self.step, call) != (self.at_step, fault.call):
                return original(*args, **kwargs)
            self.struck = total
            return fault.wrong(original)(*args, **kwargs)

        return kernel


@contextlib.contextmanager
def replaced_kernels(operators: set[str]) -> Iterator[Kernels]:
    """Replace the CPU kernels of these operators while the block runs."""
    kernels = Kernels()
    library = torch.library.Library("aten", "IMPL")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is what we want
            for operator in sorted(operators):
                kernel = torch.library.get_kernel(operator, "CPU")

                def original(*args: Any, _kernel: Any = kernel, **kwargs: Any) -> Any:
                    return _kernel.call_boxed(keys, *args, **kwargs)

                library.impl(operator.removeprefix("aten::"), kernels.wrap(operator, original), "CPU")
        yield kernels
    finally:
        library._destroy()


def build(shape: Shape, plant: Plant, *, suspect: bool) -> Training:
    """The program of one side, before its first step."""
    return Training(shape, **plant.program, **(plant.suspect if suspect else {}))


def train(
    training: Training,
    plant: Plant,
    kernels: Kernels,
    *,
    steps: int,
    suspect: bool,
    after_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train one side.

    Args:
        training: As built.
        plant: The row; its fault strikes on the suspect only.
        kernels: The replaced kernels.
        steps: How many.
        suspect: Which side.
        after_step: Called after each step.

    Returns:
        The losses.
    """
    at, fault = plant.step % steps, plant.fault if suspect else None
    kernels.arm(fault if isinstance(fault, KernelFault) else None, at)

    def write(training: Training) -> None:
        assert isinstance(fault, StrayWrite)
        parameter = dict(training.model.named_parameters())[fault.parameter]
        fault.damage(training.optimizer.state[parameter][fault.key])

    losses = []
    for step in range(steps):
        kernels.begin(step)
        losses.append(training.step(write if isinstance(fault, StrayWrite) and step == at else None))
        if after_step is not None:
            after_step()
    assert not isinstance(fault, KernelFault) or kernels.struck is not None, f"{plant.title}: the operator was not called so often"
    return losses


def damaged(change: Callable[[torch.Tensor], object], output: int = 0) -> Callable[[Kernel], Kernel]:
    """A kernel whose result is changed after the fact."""

    def wrong(original: Kernel) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            change(result if isinstance(result, torch.Tensor) else result[output])
            return result

        return kernel

    return wrong


def skipped_weight(position: int) -> KernelFault:
    """A fused AdamW that leaves one parameter as it was, its moments updated: wrong weights from right inputs."""

    def wrong(original: Kernel) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            old = bytes_of(args[0][position])
            result = original(*args, **kwargs)
            put_back(args[0][position], old)
            return result

        return kernel

    return KernelFault("aten::_fused_adamw_", 0, f"mut.0.{position}", wrong)


PLANTS = (
    Plant("lowest bit of one element, output of GELU", KernelFault("aten::gelu", 1, "out.0", damaged(lambda out: flip(out, 1000, LSB)))),
    Plant(
        "exponent bit of one element, a gradient's matrix product",
        KernelFault("aten::mm", 2, "out.0", damaged(lambda out: flip(out, 1000, EXPONENT))),
    ),
    Plant(
        "two rows swapped, output of a linear layer",
        KernelFault("aten::addmm", 4, "out.0", damaged(lambda out: swap_rows(out, 1, 2))),
        origin="permutation",
    ),
    Plant(
        "the same bit of two elements, output of layer norm",
        KernelFault("aten::native_layer_norm", 4, "out.0", damaged(flip_two)),
    ),
    Plant("fused AdamW leaves one weight as it was", skipped_weight(7), program={"optimizer": {"fused": True}}),
    Plant("the same in the last step", skipped_weight(7), step=-1, program={"optimizer": {"fused": True}}),
    Plant(
        "`exp_avg_sq` changes before a foreach update",
        StrayWrite("blocks.1.up.weight", "exp_avg_sq", lambda state: flip(state, 1000, MIDDLE)),
        origin="mutated",
        program={"optimizer": {"foreach": True}},
    ),
    Plant("none: a copy inserted on the data path", None, suspect={"copy_after": 1}),
    Plant("none: equal runs with NaN in a statistic", None, program={"accuracy_by_token": True}),
    Plant("none: equal runs", None),
)


def operators_of(plants: tuple[Plant, ...] = PLANTS) -> set[str]:
    """Operators whose kernels the faults need."""
    return {plant.fault.operator for plant in plants if isinstance(plant.fault, KernelFault)}
