"""The storages of C++ and those of Python give the same answers to the same questions, whatever is written, grown, freed and asked."""

from __future__ import annotations

import gc
import random  # noqa: TID251  only generators of its own
from typing import Any

import pytest
import torch

from opguard_core.engines import storages as in_python
from opguard_core.engines.geometry import Geometries
from opguard_core.fingerprint.digest import Digests
from tests.support import observer_probes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the parts, where nobody has yet, on a busy machine
_DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.complex128, torch.int64)


@pytest.fixture(scope="module")
def parts() -> Any:
    built = observer_probes.load()
    if isinstance(built, str):
        pytest.skip(f"the observer cannot be built here: {built}")
    return built


class Twins:
    """The same calls to both."""

    def __init__(self, parts: Any) -> None:
        self.seq = 0
        self.texts = parts.Texts()
        self.storages = (in_python.Storages(lambda: self.seq), parts.Storages(lambda: self.seq, self.texts))
        self.geometries = (Geometries(), parts.Geometries(self.texts))

    def place(self, tensor: torch.Tensor) -> list[tuple[Any, int, Any]]:
        """Storage, byte offset and geometry on each side."""
        offset = tensor.storage_offset() * tensor.itemsize
        pairs = zip(self.storages, self.geometries, strict=True)
        return [(storages.of(tensor, self.seq), offset, geometries.of(tensor)) for storages, geometries in pairs]

    def compare(self, tensor: torch.Tensor) -> None:
        """Everything there is to know of a view's storage."""
        (record, offset, geometry), (twin, _, its) = self.place(tensor)
        for name in ("serial", "nbytes", "born_seq", "name", "foreign", "gradient", "address"):
            assert getattr(record, name) == getattr(twin, name), name
        for name in ("dtype", "shape", "strides", "itemsize", "nbytes", "span", "sizes", "steps", "kind"):
            assert getattr(geometry, name) == getattr(its, name), name
            assert getattr(geometry.base, name) == getattr(its.base, name), name
        assert record.gaps == twin.gaps
        assert record.is_written(offset, geometry) == twin.is_written(offset, its)
        assert record.written.get((offset, geometry.base)) == twin.written.get((offset, its.base))
        for version in (None, 0, 1, 2, 3, 4):
            assert record.carried(offset, geometry, version) == twin.carried(offset, its, version)
        assert len(record.written) == len(twin.written)

    def lifetimes(self, call: str, *arguments: int) -> None:
        """Polls and endings tell the same."""
        ours, theirs = (list(getattr(storages, call)(*arguments)) for storages in self.storages)
        assert ours == theirs


def _view(draw: random.Random, base: torch.Tensor) -> torch.Tensor:
    """Some view of all of a storage: dense, strided, expanded, transposed, overlapping, empty, scalar."""
    numel = base.untyped_storage().nbytes() // base.itemsize
    offset = draw.randint(0, numel)
    sizes: list[int] = []
    steps: list[int] = []
    left = numel - 1 - offset
    for _ in range(draw.randint(0, 3)):
        size = draw.choice((0, 1, 1, 2, 3, 5, 8, left + 1))
        step = draw.choice((0, 1, 1, 2, 3, 8))
        if left < 0:
            size = 0
        elif size and (size - 1) * step > left:
            size = left // step + 1
        sizes.append(size)
        steps.append(step)
        left -= max(size - 1, 0) * step
    if left < 0 and 0 not in sizes:
        sizes, steps = [0], [1]
    return base.as_strided(sizes, steps, offset)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_writes_views_and_sizes_give_the_same_answers(parts: Any, seed: int) -> None:
    draw, twins = random.Random(seed), Twins(parts)
    bases: list[torch.Tensor] = []
    for turn in range(220):
        twins.seq += draw.randint(0, 2)
        if len(bases) < 2 or draw.random() < 0.04:
            bases.append(torch.empty(draw.randint(1, 40), dtype=draw.choice(_DTYPES)))
        base = draw.choice(bases)
        view = _view(draw, base)
        places: Any = twins.place(view)
        actions = (
            "write",
            "write",
            "write",
            "read",
            "read",
            "strided",
            "forget",
            "unseen",
            "new",
            "name",
            "grow",
            "free",
            "poll",
            "unread",
        )
        action = draw.choice(actions)
        if action in ("write", "unread"):
            digests = None if action == "unread" else Digests(turn, 2, 3, 4, bool(turn % 2), view.numel() * view.itemsize)
            version = draw.choice((None, turn % 5))
            expected = version is not None and draw.random() < 0.5
            for record, offset, geometry in places:
                record.wrote(offset, geometry, version, digests, expected=expected)
        elif action == "read":
            for record, offset, geometry in places:
                digests = Digests(turn, 2, 3, 4, False, view.numel() * view.itemsize)
                record.saw(offset, geometry, turn % 5, digests, record.tick - (turn % 7 == 0))
        elif action == "strided":
            for start in range(min(2, base.numel())):
                for record, offset, geometry in twins.place(base[start::2]):
                    record.wrote(offset, geometry, turn, None)
        elif action == "forget":
            for record, _, _ in places:
                record.written.clear()
        elif action == "unseen":
            since = [storages.tick() for storages in twins.storages]
            for record, offset, geometry in places if draw.random() < 0.5 else ():
                record.wrote(offset, geometry, 1, Digests(turn, 2, 3, 4, False, view.numel() * view.itemsize))
            for storages, tick in zip(twins.storages, since, strict=True):
                if turn % 2:
                    storages.forget_older(tick)
                else:
                    storages.forget_unseen([view, torch.zeros(2), torch.zeros(2).to_sparse()], tick)
        elif action == "new":
            for record, _, _ in places:
                record.never_written()
        elif action == "name":
            facts = draw.choice((("", True, False), ("param:wé", False, True)))
            for record, _, _ in places:
                record.name, record.gradient, record.foreign = facts
        elif action == "grow" and base.is_contiguous():
            base.resize_(draw.randint(1, 50))
            for record, _, _ in twins.place(base):
                record.grew(base.untyped_storage().nbytes())
        elif action == "free" and len(bases) > 2:
            record = places = view = base = known = None  # all that may hold it
            bases.pop(draw.randrange(len(bases)))
        elif action == "poll":
            twins.lifetimes("poll", twins.seq)
        for known in bases:
            twins.compare(known)
            twins.compare(_view(draw, known))
        assert len(twins.storages[0]) == len(twins.storages[1])
    twins.lifetimes("close")
    assert not len(twins.storages[1])


def test_views_with_the_same_bytes_have_one_base_on_both_sides(parts: Any) -> None:
    twins, whole = Twins(parts), torch.zeros(4, 6, 5)
    for same, other in (
        (whole.view(24, 5), whole.view(-1)),
        (whole[:, None, 1:4], whole[:, 1:4].view(4, 3, 1, 5)),
        (whole.transpose(0, 2)[None], whole.transpose(0, 2)),
        (whole[0, 0, 0], whole[:1, :1, :1]),
        (whole[:0], whole[..., :0]),
        (whole[:1, :1].expand(3, 2, 5), whole[0, 0].expand(6, 5)),
    ):
        assert all(geometries.of(same).base is geometries.of(other).base for geometries in twins.geometries)
        twins.compare(same)
    for one, another in ((whole, whole.transpose(0, 1)), (whole[:, :3], whole[:3]), (whole, whole.view(torch.int32)), (whole, whole[1:])):
        assert all(geometries.of(one).base is not geometries.of(another).base for geometries in twins.geometries)


def test_a_storage_with_too_many_views_forgets_all_of_them(parts: Any) -> None:
    twins, base = Twins(parts), torch.zeros(400)
    for turn in range(150):
        for record, offset, geometry in twins.place(base[turn : turn + 2]) if turn % 3 else ():
            record.saw(offset, geometry, 0, Digests(turn, 0, 0, 0, False, 8), record.tick)
        for record, offset, geometry in twins.place(base[turn : turn + 1]):
            record.wrote(offset, geometry, 0, Digests(turn, 0, 0, 0, False, 4))
        twins.compare(base[turn : turn + 1])


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("own", lambda: torch.zeros(3)),
        ("numpy", lambda: torch.from_numpy(torch.zeros(3).numpy())),
        ("bytes", lambda: torch.frombuffer(bytearray(12), dtype=torch.float32)),
        ("shared", lambda: torch.zeros(3).share_memory_()),
        ("empty", lambda: torch.zeros(0)),
    ],
)
def test_memory_that_others_may_write_is_foreign_on_both_sides(parts: Any, kind: str, make: Any) -> None:
    twins, tensor = Twins(parts), make()
    twins.compare(tensor)
    assert twins.place(tensor)[1][0].foreign == (kind in ("numpy", "bytes", "shared"))


def test_memory_that_comes_to_be_shared_is_foreign_from_then_on(parts: Any) -> None:
    twins, tensor = Twins(parts), torch.zeros(3)
    for storages in twins.storages:
        storages.shared(tensor.untyped_storage())  # not met yet
    twins.compare(tensor)
    for storages in twins.storages:
        storages.shared(tensor.untyped_storage())
    assert [record.foreign for record, _, _ in twins.place(tensor)] == [True, True]


def test_memory_of_a_device_is_not_foreign(parts: Any) -> None:
    """torch calls every CUDA storage shared."""
    tensor = parts.on_device(torch.zeros(3), 0)
    assert tensor.untyped_storage().is_shared()
    assert not any(record.foreign for record, _, _ in Twins(parts).place(tensor))


def test_a_tensor_without_memory_of_its_own_is_refused_as_by_python(parts: Any) -> None:
    twins = Twins(parts)
    for storages in twins.storages:
        with pytest.raises((RuntimeError, NotImplementedError)):
            storages.known(torch.zeros(3).to_sparse())
        assert storages.known(torch.zeros(3)) is None


def test_what_is_pending_is_held_and_let_go_of(parts: Any) -> None:
    class Collective:
        pass

    twins, tensor = Twins(parts), torch.zeros(3)
    record = twins.place(tensor)[1][0]
    assert record.pending is None
    record.pending = pending = Collective()
    assert record.pending is pending
    record.pending = None
    assert len(gc.get_referrers(pending)) <= 1  # this frame
    record.pending = pending
    del record, tensor
    assert [row.storage for row in twins.storages[1].poll(1)] == [0]


def test_a_record_outlives_its_storage_without_keeping_it(parts: Any) -> None:
    twins, tensor = Twins(parts), torch.zeros(3)
    record = twins.place(tensor)[1][0]
    address = record.address
    assert not torch.UntypedStorage._expired(address)
    del tensor
    assert torch.UntypedStorage._expired(address)
    twins.storages[1].poll(1)
    # The header behind the address is still ours to ask: a collective asks for it later.
    assert torch.UntypedStorage._expired(record.address)


def test_more_shapes_than_a_program_has_are_forgotten_alike(parts: Any) -> None:
    twins = Twins(parts)
    limit = Geometries.LIMIT
    assert parts.Geometries.LIMIT == limit
    base = torch.empty(0)
    mine, theirs = twins.geometries
    first = [geometries.of(base) for geometries in twins.geometries]
    storage = torch.zeros(1)
    for size in range(limit - 2):  # and one that has the same bytes as all of them
        view = storage.as_strided((1, 1), (size, 1))
        mine.of(view), theirs.of(view)
    assert [geometries.of(base) is known for geometries, known in zip(twins.geometries, first, strict=True)] == [True, True]
    view = storage.as_strided((1, 1, 1), (1, 1, 1))
    mine.of(view), theirs.of(view)
    assert [geometries.of(base) is known for geometries, known in zip(twins.geometries, first, strict=True)] == [False, False]
    assert len(theirs) == 3
