# ruff: noqa: E402  (torch may be missing)
"""The snapshot file: what it keeps to the bit, what it refuses, and that a damaged or foreign one changes nothing."""

import collections
import json
import math
import os

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import numpy

from opguard_core import state
from opguard_core.errors import StateDamaged, StateError, StateMismatch, StateNotRestored, StateUnsupported
from opguard_core.state import container
from opguard_core.state.equality import first_difference, same_bits
from opguard_core.state.tree import Reader, Writer


class Tied(torch.nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


class Holder:
    """An object of the program with a state."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def through(tmp_path, value):
    """A value after a journey through a file."""
    state.snapshot(tmp_path / "v", values={"value": value})
    return state.restore(tmp_path / "v").values["value"]


def test_values_come_back_as_what_they_are(tmp_path):
    values = {
        "numbers": [0, -(2**80), True, None, 0.1, -0.0, math.inf, -math.inf, 5e-324, 1 + 2j],
        "text": "caf\u00e9\n\x00",
        "bytes": bytes(range(256)),
        (1, "a"): (1, [2, (3,)]),
        7: {3, 1, 2},
        None: frozenset({"x"}),
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "counter": collections.Counter({4: 2}),
        "deque": collections.deque([1, 2], maxlen=2),
        "torch": [torch.float8_e5m2, torch.device("cpu"), torch.Size([2, 3])],
    }
    back = through(tmp_path, values)
    assert first_difference(values, back, "values") == ""
    assert [type(a) is type(b) for a, b in zip(values.values(), back.values(), strict=True)] == [True] * len(values)
    assert back["deque"].maxlen == 2
    assert math.copysign(1, back["numbers"][5]) == -1


def test_nan_keeps_its_payload_and_arrays_their_type(tmp_path):
    nan = torch.tensor([0x7FC0_0001, 0xFFC1_2345 - (1 << 32)], dtype=torch.int32).view(torch.float32)
    arrays = [numpy.arange(6, dtype=">i2").reshape(2, 3)[:, ::-1], numpy.float64(0.1), numpy.array(3), numpy.zeros((0, 2))]
    back = through(tmp_path, [nan, *arrays])
    assert same_bits(back[0], nan)
    assert all(
        one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
        for one, two in zip(arrays, back[1:], strict=True)
    )
    assert isinstance(back[2], numpy.float64)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e8m0fnu,
        torch.complex64,
        torch.uint16,
        torch.bool,
        torch.float64,
    ],
    ids=str,
)
def test_tensors_of_any_dtype_keep_every_byte_and_their_layout(tmp_path, dtype):
    base = torch.randint(0, 2, (4, 6 * dtype.itemsize), dtype=torch.uint8).view(dtype)
    for tensor in (base, base.t(), base[1:3, ::2], base[:0], base[0, 0]):
        back = through(tmp_path, tensor)
        assert same_bits(back, tensor)
        assert back.stride() == tensor.stride()


def test_shared_memory_stays_shared_and_unreached_memory_is_left_out(tmp_path):
    base = torch.arange(100_000.0)
    one, two, far = through(tmp_path, [base[10:20], base[15:25], torch.arange(4.0)])
    one[7] = -1
    assert two[2] == -1
    assert far[2] == 2
    state.snapshot(tmp_path / "small", values={"part": base[10:20]})
    assert (tmp_path / "small").stat().st_size < 60_000


def test_any_safetensors_reader_opens_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Linear(3, 2).bfloat16()
    state.snapshot(tmp_path / "s.safetensors", model=model)
    read = safetensors.load_file(tmp_path / "s.safetensors")
    assert same_bits(read["model.state.weight"], model.weight)


def test_tied_weights_stay_tied_and_an_untied_model_is_refused(tmp_path):
    saved, other, untied = Tied(), Tied(), Tied(tied=False)
    state.snapshot(tmp_path / "s", model=saved)
    state.restore(tmp_path / "s", model=other)
    assert other.head.weight is other.embed.weight
    assert same_bits(other.head.weight, saved.head.weight)
    with pytest.raises(StateMismatch, match="share memory"):
        state.restore(tmp_path / "s", model=untied)


class Momentum(torch.optim.Optimizer):
    """Keeps its state in float32 whatever the parameters are."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "betas": (0.9, torch.tensor(0.5))})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p, dtype=torch.float32))
                kept.mul_(0.9).add_(p.grad.float())
                p.add_(-group["lr"] * kept)


def test_optimizer_state_in_another_precision_than_its_parameters_survives(tmp_path):
    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()

    models = [torch.nn.Linear(3, 2).bfloat16() for _ in range(2)]
    optimizers = [Momentum(model.parameters()) for model in models]
    for _ in range(3):
        step(models[0], optimizers[0])
    state.snapshot(tmp_path / "s", model=models[0], optimizer=optimizers[0])
    state.restore(tmp_path / "s", model=models[1], optimizer=optimizers[1])
    assert next(iter(optimizers[1].state.values()))["momentum"].dtype == torch.float32
    for model, optimizer in zip(models, optimizers, strict=True):
        step(model, optimizer)
    assert same_bits(models[0].weight, models[1].weight)


def test_a_snapshot_in_the_middle_of_an_accumulation_keeps_the_gradients_and_the_frozen(tmp_path):
    models = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)) for _ in range(2)]
    models[0][0].requires_grad_(False)
    models[0][1].eval()
    models[0](torch.ones(1, 3)).sum().backward()
    state.snapshot(tmp_path / "s", model=models[0])
    state.restore(tmp_path / "s", model=models[1])
    assert same_bits(models[1][1].weight.grad, models[0][1].weight.grad)
    assert models[1][0].weight.grad is None
    assert not models[1][0].weight.requires_grad
    assert [module.training for module in models[1]] == [True, False]


def test_what_would_need_code_is_refused_by_the_name_of_its_place(tmp_path):
    for value, place in (
        (lambda: 0, r"values\.value is a builtins\.function"),
        (Holder(1), "Holder"),
        (torch.eye(2).to_sparse(), "sparse"),
    ):
        with pytest.raises(StateUnsupported, match=place):
            through(tmp_path, value)
    with pytest.raises(StateUnsupported, match="without `state_dict`"):
        state.snapshot(tmp_path / "v", extra={"a": object()})
    with pytest.raises(StateUnsupported, match="does not know where it is"):
        state.snapshot(tmp_path / "v", loader=torch.utils.data.DataLoader([1]))
    assert not list(tmp_path.iterdir())


def test_a_snapshot_that_does_not_fit_changes_nothing(tmp_path):
    saved = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(saved.parameters())
    state.snapshot(tmp_path / "s", model=saved, optimizer=optimizer)
    other = torch.nn.Linear(3, 2)
    wider = torch.nn.Linear(4, 2)
    before = other.weight.detach().clone(), torch.get_rng_state()
    reversed_order = torch.optim.AdamW([other.bias, other.weight])
    for given, what in (
        (
            {"model": wider, "optimizer": optimizer},
            r"model\.weight is float32 \[2, 3\] in the snapshot and float32 \[2, 4\] here",
        ),
        ({"model": other}, "only in the snapshot: optimizer"),
        ({"model": other, "optimizer": reversed_order}, r"parameter 0 is model\.weight \[2, 3\] in the snapshot, model\.bias \[2\] here"),
        ({"model": other, "optimizer": torch.optim.SGD(other.parameters())}, "optimizer is a SGD here and a AdamW in the snapshot"),
        ({"model": other, "optimizer": optimizer, "extra": Holder(1)}, "not in the snapshot: extra"),
    ):
        with pytest.raises(StateMismatch, match=what):
            state.restore(tmp_path / "s", **given)
    assert same_bits(other.weight, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_loader_of_other_settings_is_refused(tmp_path):
    data = list(range(9))
    state.snapshot(tmp_path / "s", loader=state.ResumableLoader(torch.utils.data.DataLoader(data, batch_size=2)))
    other = state.ResumableLoader(torch.utils.data.DataLoader(data, batch_size=3, num_workers=1))
    with pytest.raises(StateMismatch, match=r"batch_size is 2 in the snapshot and 3 here.*num_workers is 0"):
        state.restore(tmp_path / "s", loader=other)


def test_an_object_that_does_not_take_its_state_is_an_error(tmp_path):
    class Deaf(Holder):
        def load_state_dict(self, state):
            self.value = dict(state)

    state.snapshot(tmp_path / "s", extra=Deaf(1.5))
    with pytest.raises(StateNotRestored, match=r"extra\.state\.value"):
        state.restore(tmp_path / "s", extra=Deaf(0.0))


def test_a_file_cut_short_or_changed_anywhere_is_refused(tmp_path):
    path = tmp_path / "s"
    state.snapshot(path, values={"x": torch.arange(3.0), "y": "text"})
    whole = path.read_bytes()
    places = sorted({*range(0, len(whole), 97), *range(12), *range(len(whole) - 13, len(whole))})
    for at in places:
        path.write_bytes(whole[:at])
        with pytest.raises(StateDamaged):
            state.restore(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(StateDamaged):
            state.restore(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StateDamaged, match="follow the last entry"):
        state.restore(path)
    path.write_bytes(whole)
    assert state.restore(path).values["y"] == "text"


def test_a_forged_seal_that_is_no_digest_is_damage(tmp_path):
    state.snapshot(tmp_path / "s", values={"step": 3})
    data = (tmp_path / "s").read_bytes()
    seal = state.inspect(tmp_path / "s")["seal"].encode()
    (tmp_path / "s").write_bytes(data.replace(seal, "\u00e9".encode() * 32, 1))
    with pytest.raises(StateDamaged, match="no digest"):
        state.restore(tmp_path / "s")


def test_bytes_that_can_change_are_refused_rather_than_changed(tmp_path):
    with pytest.raises(StateUnsupported, match="bytearray"):
        state.snapshot(tmp_path / "s", values={"raw": bytearray(b"x")})


def test_a_newer_format_and_a_missing_file_say_so(tmp_path, monkeypatch):
    with pytest.raises(StateDamaged, match="cannot be read"):
        state.restore(tmp_path / "none")
    monkeypatch.setattr(container, "FORMAT", 2)
    state.snapshot(tmp_path / "s")
    monkeypatch.undo()
    with pytest.raises(StateDamaged, match="has format 2; this release reads up to 1") as caught:
        state.restore(tmp_path / "s")
    assert caught.value.as_dict()["slug"] == "state-newer"


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "s"
    state.snapshot(path, values={"x": 1})

    def full(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(container.os, "fsync", full)
    with pytest.raises(StateError, match="No space left"):
        state.snapshot(path, values={"x": 2})
    monkeypatch.undo()
    assert state.restore(path).values == {"x": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_inspect_reads_what_it_says_of_itself(tmp_path):
    seal = state.snapshot(tmp_path / "s", model=torch.nn.Linear(2, 2), values={"step": 3})
    found = state.inspect(tmp_path / "s")
    assert (found["values"], found["parts"], found["seal"]) == ({"step": 3}, ["model"], seal)
    assert found["facts"]["torch"] == torch.__version__
    json.dumps(found)


def test_generators_of_every_kind_go_on(tmp_path):
    def kinds(seed):
        return {
            "torch": torch.Generator().manual_seed(seed),
            "pcg": numpy.random.default_rng(seed),
            "old": numpy.random.RandomState(seed),
            "python": __import__("random").Random(seed),
        }

    def draw(given):
        return [torch.rand(2, generator=given["torch"]).tolist(), given["pcg"].normal(), given["old"].rand(), given["python"].gauss(0, 1)]

    saved, other = kinds(1), kinds(2)
    draw(saved)
    state.snapshot(tmp_path / "s", generators=saved)
    state.restore(tmp_path / "s", generators=other)
    assert draw(saved) == draw(other)
    with pytest.raises(StateMismatch, match="is a numpy RandomState generator here"):
        state.restore(tmp_path / "s", generators={**other, "pcg": other["old"]})


def test_a_value_in_memory_and_the_same_from_its_nodes_are_equal():
    value = {"a": [torch.arange(3), (1, 2.5)]}
    writer = Writer()
    node = json.loads(json.dumps(writer.node(value, "v")))
    assert node != value
    with pytest.raises(StateDamaged):
        Reader({}).value({"k": "tensor", "dtype": "float32"})
