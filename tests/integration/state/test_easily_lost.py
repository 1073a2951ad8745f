# ruff: noqa: E402  (torch may be missing)
"""What a checkpoint easily loses without a word: it comes back, or the snapshot is refused before anything changes."""

import errno
import fcntl
import random  # noqa: TID251  the programs under test use it
import warnings

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core import state
from opguard_core.errors import StateDamaged, StateError, StateMismatch, StateNotRestored, StateUnsupported
from opguard_core.state.equality import first_difference, same_bits

DATA = list(range(20))


def loader(sampler=None, workers=0, **options):
    inside = torch.utils.data.DataLoader(DATA, batch_size=2, sampler=sampler, num_workers=workers, **options)
    return state.ResumableLoader(inside)


def test_a_parameter_of_no_model_is_kept_with_its_optimizer(tmp_path):
    def build():
        model, scale = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.rand(2))
        return model, scale, torch.optim.SGD([*model.parameters(), scale], 0.1)

    (model, scale, optimizer), (other, other_scale, other_optimizer) = build(), build()
    state.snapshot(tmp_path / "s", model=model, optimizer=optimizer)
    state.restore(tmp_path / "s", model=other, optimizer=other_optimizer)
    assert same_bits(scale, other_scale)


def test_a_parameter_that_the_model_leaves_out_of_its_state_dict_is_kept(tmp_path):
    class Adapter(torch.nn.Linear):
        def state_dict(self, *args, **kwargs):
            return {name: value for name, value in super().state_dict(*args, **kwargs).items() if name != "weight"}

        def load_state_dict(self, state_dict, strict=True, assign=False):
            super().load_state_dict(state_dict, strict=False, assign=assign)

    saved, other = Adapter(3, 2), Adapter(3, 2)
    state.snapshot(tmp_path / "s", model=saved)
    state.restore(tmp_path / "s", model=other)
    assert same_bits(saved.weight, other.weight)
    assert same_bits(saved.bias, other.bias)


class Net(torch.nn.Linear):
    pass


@pytest.mark.parametrize(
    ("saved", "given", "what"),
    [
        (lambda: torch.nn.Linear(2, 2), lambda: Net(2, 2), "model is a Net here and a Linear in the snapshot"),
        (
            lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)),
            lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()),
            "its modules: 1 only here",
        ),
        (
            lambda: torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last),
            lambda: torch.nn.Conv2d(2, 2, 3),
            r"with strides \[18, 1, 6, 2\] in the snapshot and .* with strides \[18, 9, 3, 1\] here",
        ),
        (lambda: torch.nn.Linear(2, 2), lambda: torch.nn.Linear(2, 2, device="meta"), "without memory here"),
    ],
    ids=["class", "modules", "layout", "meta"],
)
def test_a_model_that_would_compute_otherwise_is_refused_before_anything_changes(tmp_path, saved, given, what):
    state.snapshot(tmp_path / "s", model=saved())
    model, stream = given(), torch.get_rng_state()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    torch.rand(1)
    with pytest.raises(StateMismatch, match=what):
        state.restore(tmp_path / "s", model=model)
    assert not torch.equal(torch.get_rng_state(), stream)
    assert all(p.is_meta or same_bits(p, was) for p, was in zip(model.parameters(), before, strict=True))


def test_optimizer_state_in_lists_keeps_its_precision(tmp_path):
    class History(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        def step(self):
            for p in self.param_groups[0]["params"]:
                self.state[p] = {"seen": [torch.rand(2), {"at": (torch.rand(1), "x")}], "kind": "text"}

    models = [torch.nn.Linear(2, 2).bfloat16() for _ in range(2)]
    first, second = (History(model.parameters()) for model in models)
    first.step()
    state.snapshot(tmp_path / "s", model=models[0], optimizer=first)
    state.restore(tmp_path / "s", model=models[1], optimizer=second)
    assert [first_difference(one, two, "") for one, two in zip(first.state.values(), second.state.values(), strict=True)] == ["", ""]


def test_a_writer_that_was_killed_leaves_nothing_for_good_and_a_writer_at_work_is_left_alone(tmp_path):
    torn, busy, other = (tmp_path / name for name in (".s.1.tmp", ".s.2.tmp", ".t.1.tmp"))
    for path in (torn, busy, other):
        path.write_bytes(b"half")
    with busy.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        state.snapshot(tmp_path / "s")
    assert sorted(tmp_path.iterdir()) == sorted([busy, other, tmp_path / "s"])


def test_where_there_are_no_locks_a_snapshot_is_written_and_nothing_is_swept(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / ".s.1.tmp").write_bytes(b"half")
    state.snapshot(tmp_path / "s", values={"step": 3})
    assert state.restore(tmp_path / "s").values == {"step": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".s.1.tmp", "s"]


class Greedy:
    """Takes apart what it is given, as `CyclicLR` does."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state.pop("value")


def test_an_object_that_takes_its_state_apart_has_it_back(tmp_path):
    def build(lr):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
        return torch.optim.lr_scheduler.CyclicLR(optimizer, lr, 1.0, cycle_momentum=False)

    greedy, scheduler = Greedy(0), build(0.5)
    state.snapshot(tmp_path / "s", extra=Greedy([1, 2]), scheduler=build(0.1))
    state.restore(tmp_path / "s", extra=greedy, scheduler=scheduler)
    assert greedy.value == [1, 2]
    assert scheduler.base_lrs == [0.1]


def test_an_object_that_refuses_its_state_is_named(tmp_path):
    class Picky(Greedy):
        def load_state_dict(self, state):
            raise KeyError("other")

    state.snapshot(tmp_path / "s", extra={"a": Picky(1)})
    with pytest.raises(StateNotRestored, match=r"extra\.a could not be put back: KeyError: 'other'"):
        state.restore(tmp_path / "s", extra={"a": Picky(1)})


def test_values_no_snapshot_can_hold_and_paths_no_file_can_have_are_errors_of_ours(tmp_path):
    endless = []
    endless.append(endless)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nested tensors torch warns once a process, of lazy modules some releases do
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
        lazy = torch.nn.LazyLinear(2)
    with pytest.raises(StateUnsupported, match=r"model\.weight has no shape yet"):
        state.snapshot(tmp_path / "s", model=lazy)
    for value in (endless, nested):
        with pytest.raises(StateUnsupported):
            state.snapshot(tmp_path / "s", values={"value": value})
    with pytest.raises(StateUnsupported, match=r"Two objects are called generators\.1"):
        state.snapshot(tmp_path / "s", generators={1: torch.Generator(), "1": random.Random(1)})
    for path in ("", "/", "a\0b", tmp_path / ("x" * 255)):
        with pytest.raises(StateError, match="cannot be written"):
            state.snapshot(path)
        with pytest.raises(StateDamaged, match="cannot be read"):
            state.restore(path)
    assert not list(tmp_path.iterdir())


def test_a_file_of_bottomless_json_is_damaged(tmp_path):
    header = b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (tmp_path / "s").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(StateDamaged, match="no header of ours"):
        state.inspect(tmp_path / "s")


class Placed(torch.utils.data.Sampler):
    """Knows its place, and gives out the very dictionary that it goes on writing to."""

    def __init__(self):
        self.place = {"at": 0}

    def __iter__(self):
        while self.place["at"] < len(DATA):
            self.place["at"] += 1
            yield self.place["at"] - 1
        self.place["at"] = 0

    def __len__(self):
        return len(DATA)

    def state_dict(self):
        return self.place

    def load_state_dict(self, state):
        self.place = state


def test_a_sampler_that_shares_its_state_with_its_user_goes_on(tmp_path):
    first, again = loader(Placed()), loader(Placed())
    iterator = iter(first)
    next(iterator), next(iterator)
    state.snapshot(tmp_path / "s", loader=first)
    state.restore(tmp_path / "s", loader=again)
    state.snapshot(tmp_path / "s", loader=again)
    state.restore(tmp_path / "s", loader=again)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]


def test_a_loader_in_use_goes_back_to_a_place_between_two_epochs(tmp_path):
    for before in (0, 1):
        first, used = loader(torch.utils.data.RandomSampler(DATA)), loader(torch.utils.data.RandomSampler(DATA))
        for _ in range(before):
            list(first)
        next(iter(used))
        state.snapshot(tmp_path / "s", loader=first)
        expected = [batch.tolist() for batch in first]
        state.restore(tmp_path / "s", loader=used)
        assert used.epoch == before
        assert [batch.tolist() for batch in used] == expected


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from DATA


def test_an_iterable_dataset_goes_on_after_its_first_pass(tmp_path):
    first, again = (state.ResumableLoader(torch.utils.data.DataLoader(Stream(), batch_size=3)) for _ in range(2))
    list(first)
    state.snapshot(tmp_path / "s", loader=first)
    state.restore(tmp_path / "s", loader=again)
    assert again.epoch == 1
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in first]


class Lazy(torch.utils.data.Sampler):
    """Draws each index from the stream that the program draws from too."""

    def __iter__(self):
        yield from (random.randrange(len(DATA)) for _ in DATA)

    def __len__(self):
        return len(DATA)


def test_batches_drawn_ahead_for_workers_are_the_same_or_it_is_an_error(tmp_path):
    random.seed(1)  # with one seed in seven both ways give the same indices
    first, again = (loader(Lazy(), workers=1) for _ in range(2))
    iterator = iter(first)
    for _ in range(2):  # the first two were drawn at once, those after them between draws of the program
        next(iterator)
        random.random()
    state.snapshot(tmp_path / "s", loader=first)
    state.restore(tmp_path / "s", loader=again)
    with pytest.raises(StateMismatch, match="batch 4 of this epoch has other indices than before"):
        list(again)
