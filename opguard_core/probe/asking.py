"""What is asked of a device and what it delivers: the seam between promises and whoever digests the tensors of a kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ElementType
from opguard_core.fingerprint.layout import merge_dimensions
from opguard_core.probe.kinds import Unreadable


class Layout:
    """Everything about one (dtype, shape, strides, signs) that does not depend on the address, worked out once.

    Attributes:
        element: What the elements are.
        numel: Their number.
        lengths: Shortest equivalent shape (`fingerprint.layout`), empty for one element.
        steps: Its strides, in elements.
        flip: XORed into every 16 logical bytes, as two words (conjugate and negative views).
        extent_bytes: From the address to one past the last byte read; 0 for no elements.
        nbytes: Logical bytes.
        prepared: For the backend: what it made of this layout, None at first.
    """

    __slots__ = ("element", "extent_bytes", "flip", "lengths", "nbytes", "numel", "prepared", "steps")

    def __init__(self, element: ElementType, shape: tuple[int, ...], strides: tuple[int, ...], flip: tuple[int, int] = (0, 0)) -> None:
        self.element, self.flip = element, flip
        self.numel = 1
        for length in shape:
            self.numel *= length
        last = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
        self.extent_bytes = (last + 1) * element.item_bytes if self.numel else 0
        self.lengths, self.steps = merge_dimensions(shape, strides) if self.numel else ((0,), (1,))
        self.nbytes = self.numel * element.item_bytes
        self.prepared: Any = None


class View(NamedTuple):
    """One tensor to digest.

    Attributes:
        tensor: It; not kept beyond the call.
        layout: How it lies in memory.
        address: Device address of element (0, ..., 0).
        device: Index of its device.
        stream: Raw handle of the stream that the calling thread's operators run on: the probe runs there, in their order.
    """

    tensor: Any
    layout: Layout
    address: int
    device: int
    stream: int


class Record(NamedTuple):
    """What a backend delivers for one ticket.

    Attributes:
        ticket: As `Backend.submit` gave it.
        found: The digests, or why there are none.
        t_device_ns: Device clock when they were taken, None if the backend has none.
    """

    ticket: int
    found: Digests | Unreadable
    t_device_ns: int | None = None


class Backend(Protocol):
    """Digests tensors of one kind of device without ever waiting for it."""

    name: str

    def submit(self, views: Sequence[View]) -> Sequence[int | Unreadable]:
        """Start digesting, behind what the views' stream has been given so far; never waits, from any thread.

        Returns:
            For each view its ticket, never given twice, or why it has none.
        """

    def take(self) -> Sequence[Record]:
        """What has arrived since the last call, in any order, each ticket once; never waits. One caller at a time."""

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Wait until a ticket has arrived or the time is up. Never called on a training's thread while it trains."""

    def report(self) -> dict[str, Any]:
        """Facts for the manifest: ``device_bytes`` and whatever else it counts."""
