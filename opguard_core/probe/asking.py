"""What is asked of a device and what it delivers: the seam between promises and whoever digests the tensors of a kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ElementType
from opguard_core.fingerprint.layout import merge_dimensions
from opguard_core.fingerprint.numpy_twin import Words
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


class Layouts:
    """Layouts of tensors that are asked for together, time and again.

    Attributes:
        each: In the order of the tensors.
        prepared: For the backend: what it made of these layouts, None at first.
    """

    __slots__ = ("each", "prepared")

    def __init__(self, each: Sequence[Layout]) -> None:
        self.each = tuple(each)
        self.prepared: Any = None


class Views(Sequence[View]):
    """Tensors of one device and stream to digest, by columns: a backend that can take them so makes no object for each.

    Attributes:
        tensors: They; not kept beyond the call.
        layouts: How they lie in memory.
        addresses: Device addresses of their elements (0, ..., 0).
        device: As `View.device`.
        stream: As `View.stream`.
    """

    __slots__ = ("addresses", "device", "layouts", "stream", "tensors")

    def __init__(self, tensors: Sequence[Any], layouts: Layouts, addresses: Sequence[int], device: int, stream: int) -> None:
        self.tensors, self.layouts, self.addresses, self.device, self.stream = tensors, layouts, addresses, device, stream

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return View(self.tensors[place], self.layouts.each[place], int(self.addresses[place]), self.device, self.stream)

    def moved(self, device: int, stream: int) -> Views:
        """The same tensors, asked for elsewhere."""
        return Views(self.tensors, self.layouts, self.addresses, device, stream)


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


class Arrived(NamedTuple):
    """What a backend delivers at once of a range of tickets.

    Attributes:
        first: Of the range.
        places: Of what has come, counted from there.
        words: A row for each: mix64, value64, bag64, xor32.
        lost: For each, whether it will not come after all.
    """

    first: int
    places: Any
    words: Words
    lost: Any


class Backend(Protocol):
    """Digests tensors of one kind of device without ever waiting for it."""

    name: str

    def submit(self, views: Sequence[View]) -> Sequence[int | Unreadable]:
        """Start digesting, behind what the views' stream has been given so far; never waits, from any thread.

        Returns:
            For each view its ticket, never given twice, or why it has none. For `Views` it may be a ``range``, whose tickets then come
            as `Arrived`.
        """

    def take(self) -> Sequence[Record | Arrived]:
        """What has arrived since the last call, in any order, each ticket once; never waits. One caller at a time."""

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Wait until a ticket has arrived or the time is up. Never called on a training's thread while it trains."""

    def report(self) -> dict[str, Any]:
        """Facts for the manifest: ``device_bytes`` and whatever else it counts."""
