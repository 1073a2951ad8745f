"""What observing will cost: the time ratio of each mode, the bytes on disk, and whether they fit.

The work of a mode is a weighted sum of what it does in a step (`work.Load`). The weights say how the modes compare; the
scale comes from the preflight itself, which times observed and unobserved steps of the program in one process:

    ratio(mode) = 1 + (ratio measured - 1) * work(mode) / work(mode measured)

so a faster machine moves the scale, not the comparison. The weights depend on who observes (Python per operator, or C++) and on where
the bytes are read (a processor core, or a card at the rate of its memory); `basis` says which were used. On a card the host's and the
card's part may overlap: then the estimates for modes that read more than the measured one are too high, never too low. How good it is:
`tests/benchmarks/RESULTS.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opguard_core.ids import OPERATOR_MODES, SIDES
from opguard_core.preflight.work import Load, Measured

EVENT_S, TENSOR_S, STATE_TENSOR_S, BYTE_S = 85e-6, 1e-6, 20e-6, 0.2e-9
"""Seconds of an observed boundary, of a tensor fingerprinted there or in the state of a step, of a byte read.

Source: fitted to all modes of the three programs of `tests/benchmarks/preflight.py`, on the CPU of RESULTS.md.
"""
NATIVE_EVENT_S, LAUNCH_S, LAUNCH_TENSOR_S = 2e-6, 4e-6, 0.3e-6
"""Seconds of a boundary that C++ observes, of the launch that digests its tensors on a card, of one more tensor in that launch.

Source: step times and host times per probe on one H200 (observing alone 1.05 of a 24 ms step of about 900 boundaries; an extension's
launch 3.5 us, eight tensors 4.5 us, 64 in one 7.5 us).
"""
COPY_SHARE = 0.88
"""What a copy moves of the rate that a card's memory has by clock and width. Source: 4.3 of 4.9 TB/s on one H200."""
UNKNOWN_BYTES_PER_S = 1e12  # a card that does not tell its memory's clock


@dataclass(frozen=True)
class Weights:
    """Seconds of the parts of observing, see the constants they come from."""

    event_s: float = EVENT_S
    tensor_s: float = TENSOR_S
    state_tensor_s: float = STATE_TENSOR_S
    byte_s: float = BYTE_S


@dataclass(frozen=True)
class ModeCost:
    """What one mode costs on one side.

    Attributes:
        ratio: Observed over bare step time, None where bare time is not known.
        step_s: Seconds of an observed step, None where nothing was timed.
        added_s: Seconds that observing adds to a step.
        measured: Whether the ratio is a measurement of this mode or follows from that of another.
    """

    ratio: float | None
    step_s: float | None
    added_s: float
    measured: bool


@dataclass(frozen=True)
class Disk:
    """Room for the traces of both sides.

    Attributes:
        step_bytes: Bytes that one more step adds, both sides.
        start_bytes: Bytes of set-up, both sides.
        planned_steps: Steps that will be recorded, None if unknown.
        needed_bytes: Bytes of both traces, None if the steps are unknown.
        free_bytes: Room on the disk of the results, less what must stay free.
        steps_that_fit: Steps until that is full.
    """

    step_bytes: int
    start_bytes: int
    planned_steps: int | None
    needed_bytes: int | None
    free_bytes: int
    steps_that_fit: int

    @property
    def fits(self) -> bool | None:
        """Whether the planned steps fit; None if their number is unknown."""
        return None if self.needed_bytes is None else self.needed_bytes <= self.free_bytes


def weights_of(side: Measured) -> Weights:
    """Weights for who observed a side and where its tensors lie."""
    event_s = NATIVE_EVENT_S if side.observer == "native" else EVENT_S
    if not side.device:
        return Weights(event_s=event_s)
    return Weights(event_s + LAUNCH_S, LAUNCH_TENSOR_S, STATE_TENSOR_S, 1 / _copy_bytes_per_s(side))


def basis(side: Measured) -> str:
    """In words, what the estimates of a side rest on."""
    measured = "scaled to the measured mode" if side.observed_s is not None and side.bare_s is not None else "not scaled: nothing was timed"
    who = f"engine {side.observer}"
    if not side.device:
        return f"{who}, digests on the processor; {measured}"
    rate = _copy_bytes_per_s(side) / 1e12
    known = "" if side.memory_bytes_per_s else ", assumed"
    return f"{who}, digests on {side.device} at {rate:.1f} TB/s (its copy rate{known}); {measured}"


def _copy_bytes_per_s(side: Measured) -> float:
    return COPY_SHARE * side.memory_bytes_per_s if side.memory_bytes_per_s else UNKNOWN_BYTES_PER_S


def work_s(load: Load, mode: str, weights: Weights = Weights()) -> float:
    """Seconds that observing one step adds in a mode, by the weights alone."""
    work = weights.state_tensor_s * load.state_tensors + weights.byte_s * load.state_bytes
    if mode in OPERATOR_MODES:
        work += weights.event_s * load.events + weights.tensor_s * load.tensors[mode] + weights.byte_s * load.read_bytes[mode]
    return work


def mode_costs(side: Measured, mode: str, modes: tuple[str, ...]) -> dict[str, ModeCost]:
    """Cost of each mode on one side.

    Args:
        side: What the preflight measured.
        mode: The mode it ran in.
        modes: Modes to estimate.
    """
    weights = weights_of(side)
    own = work_s(side.load, mode, weights)
    added = side.observed_s - side.bare_s if side.observed_s is not None and side.bare_s is not None else None
    scale = max(added, 0.0) / own if added is not None and own else 1.0
    costs = {}
    for name in modes:
        extra = scale * work_s(side.load, name, weights)
        step = side.observed_s if name == mode else side.bare_s + extra if side.bare_s is not None else None
        ratio = step / side.bare_s if step is not None and side.bare_s else None
        costs[name] = ModeCost(ratio, step, extra, measured=name == mode and side.ratio is not None)
    return costs


def disk(sides: Mapping[str, Measured], planned_steps: int | None, free_bytes: int) -> Disk:
    """Room for both traces.

    Args:
        sides: Measurements by side.
        planned_steps: Steps that will be recorded on each side, or None if unknown.
        free_bytes: Room on the disk of the results, less what must stay free.
    """
    step_bytes, start_bytes = (sum(getattr(sides[side], name) for side in SIDES) for name in ("disk_step_bytes", "disk_start_bytes"))
    needed = None if planned_steps is None else start_bytes + planned_steps * step_bytes
    fit = max(0, free_bytes - start_bytes) // max(1, step_bytes)
    return Disk(step_bytes, start_bytes, planned_steps, needed, free_bytes, fit)
