"""The probes of C++ make the same slot rows as those of Python: every kind of tensor, every order of reads and writes."""

from __future__ import annotations

import random  # noqa: TID251  only generators of its own
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opguard_core.engines import cells as promises
from opguard_core.engines import probes as in_python
from opguard_core.engines import storages as storages_in_python
from opguard_core.engines.coverage import Coverage
from opguard_core.engines.kinds import is_plain
from opguard_core.engines.twin import hand_over, launch_with
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Deliveries, Layout, Promise, Unchanged, View, settle
from opguard_core.probe.tensor import fingerprint
from opguard_core.trace.schema import SlotRow
from tests.support import fake_cuda, observer_probes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the parts, where nobody has yet, on a busy machine


@pytest.fixture(scope="module")
def parts() -> Any:
    built = observer_probes.load()
    if isinstance(built, str):
        pytest.skip(f"the observer cannot be built here: {built}")
    return built


class Twins:
    """The same calls to both; every row and gap must be the same."""

    def __init__(self, parts: Any, *, carry: bool = True) -> None:
        self.parts, self.consumed, self.entered = parts, ([], []), []  # type: ignore[var-annotated]
        self.coverage = (Coverage(lambda: 0), Coverage(lambda: 0))
        self.texts, self.fingerprints = parts.Texts(), parts.Fingerprints(parts.Cells())
        assert hand_over(self.fingerprints) == ""
        self.storages = (storages_in_python.Storages(lambda: 0), parts.Storages(lambda: 0, self.texts))
        ours, theirs = self.storages
        first, second = self.coverage
        self.probes = (
            in_python.Probes(ours, first, carry=carry, consume=self._consume(0)),
            parts.Probes(theirs, second, self.fingerprints, carry=carry, consume=self._consume(1), entered=self.entered.append),
        )
        self.rows: tuple[list[SlotRow], list[SlotRow]] = ([], [])

    def _consume(self, side: int) -> Callable[[Any], None]:
        def consume(record: Any, read: bool) -> None:
            self.consumed[side].append((record.serial, read))
            record.pending = None

        return consume

    def call(self, name: str, seq: int, path: str, tensor: torch.Tensor, *arguments: Any, **options: Any) -> list[SlotRow]:
        """One call to each; the rows it added."""
        for rows, probes in zip(self.rows, self.probes, strict=True):
            rows.clear()
            failure = [None, None]
            try:
                getattr(probes, name)(rows, seq, path, tensor, *arguments, **options)
            except (RuntimeError, ValueError) as error:
                failure[probes is self.probes[1]] = type(error)  # type: ignore[call-overload]
        assert failure[0] == failure[1]
        assert self.rows[0] == self.rows[1]
        assert all(type(row) is SlotRow for row in self.rows[1])
        assert self.coverage[0].report() == self.coverage[1].report()
        assert self.consumed[0] == self.consumed[1]
        return list(self.rows[1])

    def records(self, tensor: torch.Tensor) -> list[Any]:
        """The storage's record on each side."""
        return [storages.of(tensor, 0) for storages in self.storages]


class _Wrapper(torch.Tensor):  # type: ignore[misc]
    """A subclass that holds its data in another tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Wrapper:
        made: _Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self._inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class _Silent(_Wrapper):
    __tensor_flatten__ = None  # type: ignore[assignment]


class _Named(torch.Tensor):  # type: ignore[misc]
    """A subclass without a dispatch of its own."""


def _copy_on_write() -> torch.Tensor:
    tensor: torch.Tensor = torch._lazy_clone(torch.randn(3, 4))
    return tensor


def _freed() -> torch.Tensor:
    tensor = torch.randn(8)
    tensor.untyped_storage().resize_(0)
    return tensor


def _shrunk() -> torch.Tensor:
    tensor = torch.randn(8)[2:]
    tensor.untyped_storage().resize_(20)
    return tensor


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(5)


def _many_dimensions() -> torch.Tensor:
    return torch.arange(2**26, dtype=torch.uint8).reshape([2] * 26).permute(*range(25, -1, -1))[tuple([slice(None)] * 20 + [0] * 6)]


_KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "transposed": lambda: torch.randn(50, 40).t(),
    "every second": lambda: torch.randn(9, 10)[:, ::2],
    "misaligned": lambda: torch.arange(33, dtype=torch.uint8)[3:],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "equal elements": lambda: torch.full((7,), float("nan")),
    "conjugate": lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
    "conjugate of doubles": lambda: torch.randn(4, dtype=torch.complex128).conj()[1:],
    "negative": lambda: torch._neg_view(torch.randn(5)),
    "negative half": lambda: torch._neg_view(torch.randn(5).half()),
    "negative imaginary part": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "negative and conjugate": lambda: torch._neg_view(torch.randn(4, dtype=torch.complex64).conj()),
    "negative integers": lambda: torch._neg_view(torch.arange(4)),
    "requires a gradient": lambda: torch.randn(4, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.randn(4)),
    "subclass": lambda: torch.randn(4).as_subclass(_Named),
    "empty subclass": lambda: torch.randn(0).as_subclass(_Named),
    "copy on write": _copy_on_write,
    "freed": _freed,
    "shrunk": _shrunk,
    "inference": _inference,
    "from numpy": lambda: torch.from_numpy(torch.randn(6).numpy()),
    "sparse": lambda: torch.randn(4, 4).relu().to_sparse(),
    "compressed rows": lambda: torch.randn(4, 4).relu().to_sparse_csr(),
    "compressed columns": lambda: torch.randn(4, 4).relu().to_sparse_csc(),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(6), 0.1, 3, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged),
    "meta": lambda: torch.empty(3, 4, device="meta"),
    "zeros without memory": lambda: torch._efficientzerotensor((3, 4)),
    "wrapper": lambda: _Wrapper(torch.randn(3)),
    "wrapper of a wrapper": lambda: _Wrapper(_Wrapper(torch.randn(3))),
    "wrapper that does not say": lambda: _Silent(torch.randn(3)),
}


def _codes(name: str) -> torch.Tensor:
    """Random bits of a dtype, among them NaN and infinities."""
    dtype: torch.dtype = getattr(torch, name)
    if dtype == torch.bool:
        return torch.randint(0, 2, (67,), dtype=torch.uint8).bool()
    return torch.randint(0, 256, (67 * dtype.itemsize,), dtype=torch.uint8).view(dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("kind", [*_KINDS, *(f"dtype {name}" for name in ELEMENT_TYPES if hasattr(torch, name))])
def test_every_kind_of_tensor_gives_the_same_rows(parts: Any, kind: str, carry: bool) -> None:
    twins = Twins(parts, carry=carry)
    tensor = _codes(kind.removeprefix("dtype ")) if kind.startswith("dtype ") else _KINDS[kind]()
    assert parts.is_plain(tensor) == is_plain(tensor)
    try:
        assert twins.probes[0].device(tensor) == twins.probes[1].device(tensor)
    except RuntimeError:
        pass
    calls: list[tuple[str, dict[str, Any]]] = [
        ("input", {}),
        ("input", {"reads": False}),
        ("input", {"reads": False, "carried": True}),
        ("output", {}),
        ("input", {}),
        ("output", {"reads": False}),
        ("mutated", {}),
        ("input", {"reads": False, "carried": True}),
        ("mutated", {"declared": False}),
        ("input", {}),
        ("output", {"written": False}),
        ("input", {}),
        ("mutated", {"reads": False}),
        ("input", {}),
        ("state", {}),
    ]
    for seq, (name, options) in enumerate(calls):
        twins.call(name, seq, f"{name[:3]}.0", tensor, **options)


def test_a_copy_on_write_tensor_stays_one(parts: Any) -> None:
    if not hasattr(torch._C, "_is_cow_tensor"):
        pytest.skip("this torch has no copy-on-write tensors")
    twins, tensor = Twins(parts), _copy_on_write()
    twins.call("input", 0, "in.0", tensor)
    twins.call("output", 0, "out.0", tensor)
    assert torch._C._is_cow_tensor(tensor)


@pytest.mark.parametrize("seed", range(30))
def test_the_same_order_of_reads_and_writes_gives_the_same_rows(parts: Any, seed: int) -> None:
    draw = random.Random(seed)
    twins = Twins(parts, carry=bool(seed % 3))
    bases = [torch.empty(draw.randint(4, 40), dtype=draw.choice((torch.float32, torch.uint8, torch.float64))) for _ in range(3)]
    for seq in range(150):
        base = draw.choice(bases)
        start, stop, step = draw.randint(0, 3), draw.randint(3, base.numel()), draw.choice((1, 1, 2, 3))
        view = base[start:stop:step]
        action = draw.choice(("read", "read", "write", "out", "garbage", "write in place", "shape", "later", "name", "pending", "resize"))
        if action == "read":
            twins.call("input", seq, "in.0", view)
        elif action == "write":
            twins.call("mutated", seq, "mut.0", view, declared=draw.random() < 0.5, reads=draw.random() < 0.8)
        elif action == "out":
            twins.call("output", seq, "out.0", view, reads=draw.random() < 0.8)
        elif action == "garbage":
            twins.call("output", seq, "out.0", base, written=False)
        elif action == "write in place":
            twins.call("mutated", seq, "mut.0", view)  # as before autograd bumps the counter
            view.zero_()
        elif action == "shape":
            twins.call("input", seq, "in.0", view, reads=False, carried=draw.random() < 0.5)
        elif action == "later":
            places = []
            for rows, probes in zip(twins.rows, twins.probes, strict=True):
                rows.clear()
                places.append(probes.later(rows, seq, "out.0", view, "out"))
            assert twins.rows[0] == twins.rows[1]
            (record, geometry, offset), (twin, its, at) = places
            assert (record.serial, geometry.steps, geometry.sizes, offset) == (twin.serial, its.steps, its.sizes, at)
        elif action == "name":
            for record in twins.records(base):
                record.name = "" if record.name else "param:w"
        elif action == "pending":
            for record in twins.records(base):
                record.pending = object()
            twins.call("input", seq, "in.0", view, consume=draw.random() < 0.7)
        elif action == "resize":
            base.untyped_storage().resize_(draw.randint(0, 60) * base.itemsize)
            for record in twins.records(base):
                record.grew(base.untyped_storage().nbytes())
            twins.call("input", seq, "in.0", base)
            base.untyped_storage().resize_(60 * base.itemsize)
            for record in twins.records(base):
                record.grew(base.untyped_storage().nbytes())


def test_a_lazy_parameter_has_a_reason(parts: Any) -> None:
    """Python's probes cannot even ask for its shape, which costs them the event."""
    rows: list[SlotRow] = []
    Twins(parts).probes[1].input(rows, 0, "in.0", torch.nn.UninitializedParameter())
    assert [(row.status, row.shape) for row in rows] == [("unreadable", "0")]


def test_nothing_plain_needs_python(parts: Any) -> None:
    twins = Twins(parts)
    for tensor in (torch.randn(3), torch.randn(3, dtype=torch.complex64).conj(), torch.empty(0), _codes("float8_e4m3fn")):
        twins.call("input", 0, "in.0", tensor)
        parts.look_at(twins.probes[1], [tensor], 1, 1, True)
    assert twins.entered == []
    parts.look_at(twins.probes[1], [_KINDS["sparse"]()], 1, 1, True)
    assert twins.entered == ["tensor-in-parts", "tensor-in-parts"]


def test_a_large_tensor_is_read_while_other_threads_run(parts: Any) -> None:
    twins = Twins(parts)
    tensor = torch.zeros(1 << 26, dtype=torch.uint8)
    reading, ran = threading.Event(), []

    def other() -> None:
        reading.wait()
        ran.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    reading.set()
    rows: list[SlotRow] = []
    twins.probes[1].input(rows, 0, "in.0", tensor)
    thread.join()
    assert ran and rows[0].mix64 == fingerprint(tensor).mix64  # type: ignore[union-attr]


def test_threads_without_the_interpreter_lock_keep_the_books_whole(parts: Any) -> None:
    twins = Twins(parts)
    tensors = [torch.zeros(64)[start : start + 16] for start in range(0, 48, 4)] + [torch.empty(40)[::2] for _ in range(4)]
    parts.look_at(twins.probes[1], tensors, 4, 200, True)
    assert len(twins.storages[1]) == 16
    told = parts.come_and_go(twins.probes[1], 4, 500)
    assert told + len(twins.storages[1]) >= 16
    assert len(twins.storages[1]) == 16
    serials = {record.serial for record in twins.storages[1].living()}
    assert len(serials) == 16


class TestDevice:
    """Tensors of a device whose launcher is played: records come when the test says so."""

    @pytest.fixture
    def twins(self, parts: Any) -> Any:
        twins = Twins(parts)
        twins.fingerprints.set_launcher(parts.play(twins.fingerprints))
        promises.wait_with(lambda cell, timeout_s: twins.fingerprints.wait(cell.ticket, timeout_s))
        yield twins
        promises.wait_with(None)

    def test_digests_are_promised_and_come_equal_to_those_of_the_host(self, parts: Any, twins: Any) -> None:
        for make in (_KINDS["transposed"], _KINDS["scalar"], _KINDS["every second"], _KINDS["equal elements"], _KINDS["misaligned"]):
            tensor = make()
            rows: list[SlotRow] = []
            twins.probes[1].input(rows, 3, "in.0", parts.on_device(tensor, 1))
            (row,) = rows
            promise: Any = row.mix64
            assert isinstance(promise, Promise) and promise.look() is None
            assert (row.device, row.status) == ("cuda:1", "probed")
            parts.deliver()
            twins.fingerprints.poll()
            assert promise.look() == fingerprint(tensor)
            assert promise.t_device_ns == 1000 + promise.ticket

    def test_an_empty_tensor_needs_no_launch(self, parts: Any, twins: Any) -> None:
        rows: list[SlotRow] = []
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(torch.empty(0), 0))
        assert rows[0].mix64 == fingerprint(torch.empty(0)).mix64  # type: ignore[union-attr]
        assert parts.submits() == []

    def test_one_operator_is_one_launch_for_each_device(self, parts: Any, twins: Any) -> None:
        tensors = [parts.on_device(torch.randn(4), device) for device in (0, 1, 0, 0)]
        parts.look_at(twins.probes[1], tensors, 1, 1, True)
        assert [(device, stream, count) for device, stream, count in parts.submits()] == [(0, 0x1000, 6), (1, 0x1001, 2)]
        assert twins.fingerprints.cells.waiting == 8

    def test_the_state_is_digested_in_few_launches(self, parts: Any, twins: Any) -> None:
        tensors = [torch.randn(4) for _ in range(70)]
        kept = [parts.on_device(tensor, 0) for tensor in tensors]
        rows: list[Any] = []
        with twins.probes[1].together():
            for tensor in kept:
                twins.probes[1].state(rows, 0, "param:w", tensor)
        assert [count for _, _, count in parts.submits()] == [64, 6]
        parts.deliver()
        twins.fingerprints.poll()
        assert [row.mix64.look() for row in rows] == [fingerprint(tensor) for tensor in tensors]

    def test_a_carried_slot_shares_the_digests_of_the_write(self, parts: Any, twins: Any) -> None:
        tensor, rows = parts.on_device(torch.randn(4), 0), []  # type: ignore[var-annotated]
        twins.probes[1].output(rows, 0, "out.0", tensor)
        twins.probes[1].input(rows, 1, "in.0", tensor)
        assert [row.status for row in rows] == ["probed", "carried"]
        assert len(parts.submits()) == 1
        parts.deliver()
        twins.fingerprints.poll()
        assert rows[0].mix64.look() == rows[1].mix64.look() is not None

    def test_what_the_device_loses_is_told_as_unreadable(self, parts: Any, twins: Any) -> None:
        rows: list[Any] = []
        parts.lose(True)
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(torch.randn(4), 0))
        parts.deliver()
        twins.fingerprints.poll()
        assert isinstance(rows[0].mix64.look(), Unreadable)

    def test_what_cannot_be_launched_is_lost_at_once(self, parts: Any, twins: Any) -> None:
        rows: list[Any] = []
        parts.refuse(True)
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(torch.randn(4), 0))
        assert isinstance(rows[0].mix64.look(), Unreadable)
        assert twins.fingerprints.cells.waiting == 0

    def test_what_is_given_up_is_lost(self, parts: Any, twins: Any) -> None:
        rows: list[Any] = []
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(torch.randn(4), 0))
        assert twins.fingerprints.cells.abandon() == 1
        assert isinstance(rows[0].mix64.look(), Unreadable)
        parts.deliver()
        twins.fingerprints.poll()
        assert isinstance(rows[0].mix64.look(), Unreadable)

    def test_who_asked_may_wait(self, parts: Any, twins: Any) -> None:
        rows: list[Any] = []
        tensor = torch.randn(4)
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(tensor, 0))
        rows[0].mix64.wait(1.0)
        assert rows[0].mix64.look() == fingerprint(tensor)

    def test_records_of_other_probes_are_handed_on(self, parts: Any, twins: Any) -> None:
        rows: list[Any] = []
        tensor = torch.randn(4)
        ticket = parts.submit_for_others(twins.fingerprints, tensor)
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(tensor, 0))
        parts.deliver()
        ((got, _, mix64, value64, bag64, *_),) = twins.fingerprints.take_others()
        assert got == ticket and (mix64, value64, bag64) == fingerprint(tensor)[:3]  # type: ignore[index]
        assert twins.fingerprints.take_others() == []
        assert rows[0].mix64.look() == fingerprint(tensor)

    def test_a_device_is_opened_once_and_one_that_cannot_be_is_unreadable(self, parts: Any, twins: Any) -> None:
        opened: list[int] = []

        def opens(device: int) -> str:
            opened.append(device)
            return "" if device == 1 else "no kernels for it"

        twins.fingerprints.set_open(opens)
        rows: list[Any] = []
        for device in (1, 0, 1, 0):
            twins.probes[1].input(rows, 0, "in.0", parts.on_device(torch.randn(4), device))
        assert opened == [1, 0]
        assert [row.status for row in rows] == ["probed", "unreadable", "probed", "unreadable"]
        (gap,) = twins.coverage[1].report()["gaps"].values()
        assert gap["examples"] == ["no kernels for it"]

    @pytest.mark.parametrize("writes", [False, True])
    def test_an_undeclared_write_is_there_only_if_there_was_one(self, parts: Any, twins: Any, writes: bool) -> None:
        host = torch.randn(4)
        tensor = parts.on_device(host, 0)
        (before, _), (after, content) = parts.look_twice(twins.probes[1], 5, tensor, lambda: host.zero_() if writes else None)
        assert not content.ready and (after.slot, after.direction, after.status) == ("mut.0", "mut", "probed")
        parts.deliver()
        twins.fingerprints.poll()
        assert content.ready and content.present is writes
        assert hasattr(after.mix64.look(), "mix64") is writes
        assert before.mix64.look() is not None

    @pytest.mark.parametrize("lost", ["before", "after"])
    def test_of_a_lost_look_nobody_says_that_it_found_a_write(self, parts: Any, twins: Any, lost: str) -> None:
        parts.lose(lost == "before")
        tensor = parts.on_device(torch.randn(4), 0)
        (before, _), (after, content) = parts.look_twice(twins.probes[1], 5, tensor, lambda: parts.lose(False))
        parts.deliver_but_last() if lost == "after" else parts.deliver()
        twins.fingerprints.poll()
        assert isinstance(before.mix64.look(), Unreadable) is (lost == "before")
        # As promise.Difference and the sink behind it have it: a gap, not a slot.
        assert not content.present and content.lost is (lost == "after")
        assert type(after.mix64.look()) is (Unreadable if lost == "after" else Unchanged)

    def test_on_the_host_it_is_known_at_once(self, parts: Any, twins: Any) -> None:
        host = torch.randn(4)
        assert len(parts.look_twice(twins.probes[1], 5, host, lambda: None)) == 1
        rows = parts.look_twice(twins.probes[1], 5, host, lambda: host.zero_())
        assert len(rows) == 2 and rows[1][0].mix64 == fingerprint(host).mix64  # type: ignore[union-attr]
        assert twins.coverage[1].report()["undeclared_writes"] == 1

    def test_memory_that_was_given_away_is_not_launched(self, parts: Any, twins: Any) -> None:
        rows: list[Any] = []
        twins.probes[1].input(rows, 0, "in.0", parts.on_device(_shrunk(), 0))
        assert rows[0].status == "unreadable" and parts.submits() == []


def test_the_launch_path_digests_for_both_sides(parts: Any, tmp_path: Path) -> None:
    """The real launcher over a driver whose device is host memory: probes of C++ and of Python share its one queue of records."""
    fake = fake_cuda.FakeCuda(tmp_path)
    twins, stream = Twins(parts), fake.stream(0)
    launch_with(twins.fingerprints, fake.launcher)
    parts.run_on(twins.fingerprints, stream)
    try:
        names = ("transposed", "scalar", "every second", "misaligned")
        plain = [*(_KINDS[name]() for name in names), *(_codes(name) for name in ELEMENT_TYPES if hasattr(torch, name))]
        rows: list[Any] = []
        promised = Deliveries(fake.launcher)
        asked: list[Any] = []
        with twins.probes[1].together():
            for tensor in plain:
                twins.probes[1].state(rows, 0, "param:w", parts.on_device(tensor, 0))
                element = ELEMENT_TYPES[str(tensor.dtype).removeprefix("torch.")]
                layout = Layout(element, tuple(tensor.shape), tensor.stride())
                asked.append(promised.ask(View(tensor, layout, tensor.data_ptr(), 0, stream)))
        fake.finish(stream)
        for row, promise, tensor in zip(rows, asked, plain, strict=True):
            assert settle(row.mix64, fake_cuda.PATIENCE_S) == settle(promise, fake_cuda.PATIENCE_S) == fingerprint(tensor)
        assert twins.fingerprints.cells.waiting == 0 and promised.num_outstanding == 0
    finally:
        promises.wait_with(None)
        fake.close()


def test_without_cuda_the_current_stream_cannot_be_told(parts: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has an NVIDIA card")
    with pytest.raises(RuntimeError):
        parts.current_cuda_stream(0)
