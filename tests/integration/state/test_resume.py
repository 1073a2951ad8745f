# ruff: noqa: E402  (torch may be missing)
"""A training restored from a snapshot goes on bit for bit as if it had not been interrupted."""

import random  # noqa: TID251  the programs under test use it

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import numpy

from opguard_core import state
from opguard_core.errors import StateMismatch
from opguard_core.state.equality import first_difference
from tests.support.resumable import Augmented, OwnStream, Stream, Telling, Training

STEPS = 15  # three epochs of six batches, the third one cut short


def seed_worker(worker):
    """What many programs do: the worker's numpy seed is made of its torch seed."""
    numpy.random.seed((torch.initial_seed() + worker) % 2**32)


def uninterrupted(folder, cuts, **options):
    """Train through and leave a snapshot after each step of ``cuts``; the state after each step of the end."""
    training = Training(1, **options)

    def keep(step):
        if step in cuts:
            state.snapshot(folder / f"{step}.state", **training.parts(), values={"step": step})

    training.run(STEPS, before_step=keep)
    return training


def disturb():
    """Another process has other global generators."""
    torch.manual_seed(77)
    random.seed(78)
    numpy.random.seed(79)


def resumed(path, **options):
    disturb()
    training = Training(999, **options)
    disturb()
    step = state.restore(path, **training.parts()).values["step"]
    training.log = [None] * step
    training.run(STEPS)
    return training


def check(folder, cuts, **options):
    reference = uninterrupted(folder, cuts, **options)
    expected = reference.everything()
    for step in cuts:
        training = resumed(folder / f"{step}.state", **options)
        logs = [side.log[step:] for side in (reference, training)]
        assert first_difference(logs[0], logs[1], f"after step {step}: log") == ""
        assert first_difference(expected, training.everything(), f"after step {step}: end") == ""


@pytest.mark.parametrize(
    "sampler", ["generator", "distributed", "own", *(pytest.param(one, marks=pytest.mark.full) for one in ("default", "replacement"))]
)
def test_without_workers(tmp_path, sampler):
    check(tmp_path, (2, 6, 8), sampler=sampler)


@pytest.mark.parametrize(
    ("sampler", "persistent"),
    [("generator", False), ("default", True), pytest.param("distributed", True, marks=pytest.mark.full)],
    ids=str,
)
def test_with_workers_that_draw_random_numbers(tmp_path, sampler, persistent):
    check(tmp_path, (3, 6, 8), sampler=sampler, workers=2, persistent=persistent, init=seed_worker)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # three workers on two processors
@pytest.mark.parametrize(
    ("sampler", "persistent"),
    [("default", False), ("own", False), ("generator", True), ("replacement", True), ("distributed", False), ("own", True)],
    ids=str,
)
def test_with_workers_anywhere_in_an_epoch(tmp_path, sampler, persistent):
    check(tmp_path, (1, 2, 4, 5, 6, 7, 11, 12, 14), sampler=sampler, workers=3, persistent=persistent)


@pytest.mark.full
def test_a_dataset_with_a_stream_of_its_own_is_replayed_or_tells_its_state(tmp_path):
    check(tmp_path, (3, 8), dataset=OwnStream, workers=2, replay=True)
    check(tmp_path, (3, 8), dataset=Telling, workers=2, persistent=True)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_an_iterable_dataset_is_replayed(tmp_path, workers):
    check(tmp_path, (2, 6, 8), dataset=Stream, sampler="none", workers=workers)


def test_a_snapshot_changes_nothing(tmp_path):
    plain, kept = Training(1, workers=2), Training(1, workers=2)
    disturb()
    plain.run(STEPS)
    disturb()
    kept.run(STEPS, before_step=lambda step: state.snapshot(tmp_path / "s", **kept.parts()))
    assert first_difference(plain.everything(), kept.everything(), "end") == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_the_wrapped_loader_gives_the_batches_of_the_plain_one(workers):
    def epochs(loader):
        disturb()
        return [list(loader), list(loader), process()]

    def process():
        return torch.rand(()), random.random(), numpy.random.rand()

    plain = torch.utils.data.DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=workers)
    assert first_difference(epochs(plain), epochs(state.ResumableLoader(plain)), "epochs") == ""


def test_an_iteration_that_was_left_counts_as_an_epoch():
    loader = state.ResumableLoader(torch.utils.data.DataLoader(Augmented(), batch_size=4))
    for _ in loader:
        break
    assert (loader.epoch, loader.batch) == (0, 1)
    list(loader)
    assert (loader.epoch, loader.batch) == (2, 0)


def test_a_sampler_that_does_not_repeat_itself_is_an_error_and_not_another_order(tmp_path):
    class Chance(torch.utils.data.Sampler):
        def __init__(self):
            self.source = random.SystemRandom()

        def __iter__(self):
            yield from (self.source.randrange(22) for _ in range(20))

        def __len__(self):
            return 20

    def loader():
        return state.ResumableLoader(torch.utils.data.DataLoader(Augmented(), batch_size=4, sampler=Chance()))

    first, again = loader(), loader()
    iterator = iter(first)
    next(iterator), next(iterator)
    state.snapshot(tmp_path / "s", loader=first)
    state.restore(tmp_path / "s", loader=again)
    with pytest.raises(StateMismatch, match="does not repeat itself"):
        next(iter(again))


def test_an_order_drawn_from_the_stream_of_the_model_is_an_error(tmp_path):
    class Lazy(torch.utils.data.Sampler):
        def __iter__(self):
            yield from (int(torch.randint(22, ())) for _ in range(20))

        def __len__(self):
            return 20

    loader = state.ResumableLoader(torch.utils.data.DataLoader(Augmented(), batch_size=4, sampler=Lazy()))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
        torch.rand(3)  # dropout
    state.snapshot(tmp_path / "s", loader=loader)
    again = state.ResumableLoader(torch.utils.data.DataLoader(Augmented(), batch_size=4, sampler=Lazy()))
    state.restore(tmp_path / "s", loader=again)
    with pytest.raises(StateMismatch, match="does not repeat itself"):
        next(iter(again))
