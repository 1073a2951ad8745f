"""Device work for made-up traces: which kernels an operator launches, and work that no boundary stands for.

write_run(folder, side, launches=Device())                               # every operator has its kernels
write_run(folder, side, launches=Device({"aten.mm.default": {TILED: 1}}, loose=[Loose(40, CUSTOM)]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opguard_core.trace.codec import to_batch
from opguard_core.trace.schema import EventRow, FrameRow, LaunchRow, LifetimeRow, SlotRow

ADD = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
ADD_WIDE = "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
GELU = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_18GeluCUDAKernelImplERNS_18TensorIteratorBaseENS0_8GeluTypeEENKUlvE_clEvENKUlvE0_"
    "clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_"
)
TILE = "nvjet_tst_128x152_64x5_2x1_v_bz_TNT"
OTHER_TILE = "nvjet_tst_192x192_64x4_2x1_v_bz_TNT"
SPLIT = "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT"
SPLIT_SUM = "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb1ELb0ELb0EEEvPKT2_PT3_"
CUTLASS = "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_nn_align8_xxEEvNT_6ParamsE"
CUSTOM = "my_extension_kernel"

KERNELS: Mapping[str, Mapping[str, int]] = {
    "aten.mm.default": {TILE: 1},
    "aten.addmm.default": {TILE: 1},
    "aten.gelu.default": {GELU: 1},
    "aten.add.Tensor": {ADD: 1},
}
"""Kernels of usual operators; any other one launches `ADD` once."""


class Loose(NamedTuple):
    """Work without a boundary, after an event (None: before the first)."""

    after: int | None
    kernel: str
    touches: bool | None = True
    count: int = 1
    kind: str = "kernel"


@dataclass
class Device:
    """A device that is watched.

    Attributes:
        kernels: Kernels by operator, over `KERNELS`.
        at: Kernels of single events by ``seq``, over both.
        loose: Work without a boundary.
        report: Added to the manifest's ``engines.launches``.
    """

    kernels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    at: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    loose: Sequence[Loose] = ()
    report: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, events: Sequence[tuple[int, str]]) -> list[LaunchRow]:
        """Rows of LAUNCHES for some operators, given as (seq, operator)."""
        found = []
        for seq, operator in events:
            works = self.at.get(seq, self.kernels.get(operator, KERNELS.get(operator, {ADD: 1})))
            found += [LaunchRow(seq, None, order, "kernel", name, 0, count, 0, None) for order, (name, count) in enumerate(works.items())]
        found += [
            LaunchRow(None, one.after, order, one.kind, one.kernel, 0, one.count, 64 if one.kind in ("copy", "fill") else 0, one.touches)
            for order, one in enumerate(self.loose)
        ]
        return found

    def engine(self) -> dict[str, Any]:
        """The manifest's ``engines.launches``."""
        return {"active": True, "recorded": 0, "lost": 0, "escaped": 0, "unnamed": 0, "own": 0, **self.report}


class Watched:
    """An `EventSink` that hands everything on and remembers the operators.

    Args:
        sink: A `TraceWriter` or a `MemoryWriter`.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.operators: list[tuple[int, str]] = []

    def emit(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        if event.kind == "operator":
            self.operators.append((event.seq, event.operator))
        self._sink.emit(event, slots)

    def frame(self, row: FrameRow) -> None:
        self._sink.frame(row)

    def stack(self, stack: int, frames: Sequence[int]) -> None:
        self._sink.stack(stack, frames)

    def lifetime(self, row: LifetimeRow) -> None:
        self._sink.lifetime(row)

    def source(self, digest: str, text: str) -> None:
        self._sink.source(digest, text)

    def launch(self, device: Device) -> None:
        """Write the device work of everything seen."""
        rows = device.rows(self.operators)
        if rows:
            self._sink.launches(to_batch("launches", rows))
