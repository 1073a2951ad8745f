# ruff: noqa: E402  (torch may be missing)
"""What the contract tells of a program: what it set, made and loaded; reading it moves no stream and changes no setting."""

import io
import random  # noqa: TID251  its stream must not move
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import numpy
from torch.utils.data import DataLoader, RandomSampler

from opguard_core.contract.compare import compare
from opguard_core.contract.spec import UNKNOWN_KEY, is_late, rule_of
from opguard_core.determinism.readers import forward_readers, late_readers
from tests.support.capturing import capturing


class Inner(torch.nn.Module):
    """Has an autocast region inside its own forward."""

    def __init__(self, dtype=None):
        super().__init__()
        self.first, self.second, self.dtype = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2), dtype

    def forward(self, x):
        if self.dtype is None:
            return self.second(self.first(x))
        with torch.autocast("cpu", dtype=self.dtype):
            return self.second(self.first(x)).float()


NO_EVENTS = (1000, 1001)  # facts are gathered outside of the window, too


def train(program):
    """Capture ``program(model)`` around one update; the contract."""
    with capturing(steps=NO_EVENTS) as captured:
        torch.manual_seed(3)
        model = Inner()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = program(model) or model
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return captured.session._facts.contract


def test_settings_around_and_inside_the_forward_are_told():
    def outside(model):
        return lambda x: _under(torch.autocast("cpu", dtype=torch.bfloat16), model, x)

    def inside(model):
        model.dtype = torch.bfloat16

    def attention(model):
        return lambda x: _under(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), model, x)

    plain = train(lambda model: None)
    assert (plain["forward.autocast"], plain["autocast.ran"]) == ([], [])
    found = train(outside)
    assert (found["forward.autocast"], found["autocast.ran"]) == (["cpu bfloat16"], ["cpu bfloat16"])
    found = train(inside)
    assert (found["forward.autocast"], found["autocast.ran"]) == ([], ["cpu bfloat16"])
    assert [item.key for item in compare(plain, found) if item.warns] == ["autocast.ran"]
    found = train(attention)
    assert found["forward.sdpa"]["flash"] is False
    assert found["flags.sdpa.flash"] is True, "the region is over when the update begins"
    assert [item.key for item in compare(plain, found) if item.warns] == ["forward.sdpa"]


def _under(region, model, x):
    with region:
        return model(x).float()


def test_precision_seeds_and_draws_are_told():
    def half(model):
        return lambda x: model.to(torch.bfloat16)(x.to(torch.bfloat16))

    plain, found = train(lambda model: None), train(half)
    assert plain["dtype.parameters"] == ["torch.float32"]
    assert found["dtype.gradients"] == ["torch.bfloat16"]
    assert {item.key for item in compare(plain, found) if item.warns} == {"dtype.parameters", "dtype.gradients"}

    def drawn(model):
        torch.rand(3)

    def reseeded(model):
        torch.manual_seed(4)

    assert [item.key for item in compare(plain, train(drawn))] == ["rng.step.torch"]
    assert "seed.torch" in {item.key for item in compare(plain, train(reseeded)) if item.warns}
    assert (plain["seed.torch"], plain["rng.drawn"], train(reseeded)["rng.drawn"]) == (3, True, False)


def test_streams_that_nobody_touched_are_equal_in_any_two_runs():
    first = train(lambda model: None)
    random.seed()
    second = train(lambda model: None)
    assert first["start.rng.python"] != second["start.rng.python"]
    assert first["rng.step.python"] == second["rng.step.python"]


def test_compiled_regions_are_told_with_their_settings():
    def program(model):
        torch.compile(model, backend="eager")
        torch.compile(fullgraph=True, backend="eager", mode=None)(torch.relu)
        torch.compile(model, backend=noop, dynamic=False)
        torch.compile(model, backend="eager", disable=True, dynamic=True)

    def noop(graph, inputs):
        return graph.forward

    declared = train(program)["compile.declared"]
    assert [one.replace(noop.__qualname__, "noop") for one in declared] == [
        "backend=eager",
        "backend=eager fullgraph=True",
        "backend=noop dynamic=False",
    ]
    differing = compare(train(lambda model: None), train(program))
    assert [(item.key, item.severity) for item in differing if item.key == "compile.declared"] == [("compile.declared", "order")]


def test_loaders_are_told_in_the_order_of_first_use():
    data = list(range(10))
    sampled = RandomSampler(data, generator=torch.Generator().manual_seed(9))

    def program(model):
        loaders = [
            DataLoader(data, batch_size=3, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(8)),
            DataLoader(data, batch_size=2, sampler=sampled, num_workers=1, worker_init_fn=str, persistent_workers=True),
            DataLoader(data, batch_size=None),
        ]
        for loader in loaders:
            list(loader), list(loader)

    found = train(program)
    facts = [{key.split(".", 2)[2]: value for key, value in found.items() if key.startswith(f"loader.{number}.")} for number in range(4)]
    assert facts[0]["batch_size"] == 3
    assert (facts[0]["generator"], facts[0]["shuffle"], facts[0]["drop_last"]) == ("seed 8", True, True)
    assert facts[0]["sampler"] == ["BatchSampler", "RandomSampler"]
    assert (facts[1]["num_workers"], facts[1]["persistent_workers"], facts[1]["worker_init_fn"]) == (1, True, True)
    assert (facts[1]["sampler_generator"], facts[1]["multiprocessing_context"]) == ("seed 9", None)
    assert (facts[2]["batch_size"], facts[2]["sampler"], facts[2]["shuffle"]) == (None, ["SequentialSampler"], False)
    assert facts[3] == {}


def test_checkpoints_are_told_by_file_and_by_what_is_in_them(tmp_path):
    def load(weights, where):
        def program(model):
            torch.save(weights, tmp_path / where)
            with (tmp_path / where).open("rb") as stream:
                read = torch.load(tmp_path / where), torch.load(stream)
            memory = io.BytesIO((tmp_path / where).read_bytes())
            torch.load(memory)
            model.load_state_dict(read[0])

        return program

    weights = Inner().state_dict()
    found = train(load(weights, "a.pt"))
    assert found["checkpoint.0.digest"] == found["checkpoint.1.digest"] == found["checkpoint.2.digest"]
    assert [found[f"checkpoint.{number}.file"] for number in range(3)] == ["a.pt", "a.pt", "memory"]
    assert (found["load.0.into"], found["load.0.tensors"]) == ("Inner", 4)
    assert set(found["load.0.parts"]) == set(weights)
    # Another name of the file, the same tensors: the file differs (it holds its own name), what is loaded does not.
    assert train(load(dict(reversed(weights.items())), "b.pt"))["load.0.digest"] == found["load.0.digest"]
    other = {**weights, "first.bias": weights["first.bias"] + 1}
    differing = compare(found, train(load(other, "a.pt")))
    assert [item.key for item in differing if item.warns] == ["load.0.digest", "load.0.parts"]
    assert all(set(getattr(item, side)) == {"first.bias"} for item in differing[1:2] for side in ("reference", "suspect"))
    assert not any(item.conflicts for item in differing)


def test_a_safetensors_file_is_told_and_the_import_system_is_as_before(tmp_path, monkeypatch):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors")
    monkeypatch.delitem(sys.modules, "safetensors.torch")

    def all_finders():
        """But for who waits for the compiler, Triton or CuPy, which this program does not load."""
        return [one for one in sys.meta_path if getattr(one, "_name", "safetensors").startswith("safetensors")]

    before, finders = [], all_finders()

    def program(model):
        from safetensors.torch import load_file

        before.append(all_finders())
        assert torch.equal(load_file(tmp_path / "w.safetensors")["w"], torch.ones(3))
        assert not load_file.__globals__["__loader__"].__dict__.get("exec_module")

    found = train(program)
    assert (found["checkpoint.0.file"], len(found["checkpoint.0.digest"])) == ("w.safetensors", 64)
    assert before == [finders]
    assert train(lambda model: None).get("checkpoint.0.file") is None
    assert all_finders() == finders


def test_a_source_that_cannot_be_read_is_unknown_and_the_load_goes_on():
    class Odd(io.RawIOBase):
        pass

    def program(model):
        with pytest.raises((OSError, ValueError, AttributeError, EOFError, RuntimeError)):
            torch.load(Odd())
        with pytest.raises(FileNotFoundError):
            torch.load("/nowhere/at/all.pt")

    found = train(program)
    assert "cannot be read" in found["checkpoint.0.digest"]["unknown"]
    assert "FileNotFoundError" in found["checkpoint.1.digest"]["unknown"]


def test_reading_moves_no_stream_changes_no_setting_and_starts_no_device():
    def state():
        return torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()

    def settings():
        readers = {**late_readers(torch), **forward_readers(torch)}
        return {key: read() for key, read in readers.items() if key != "env.at_step"}

    with capturing(steps=NO_EVENTS) as captured:
        before = state(), settings()
        captured.session._facts.forward()
        captured.session._facts.late("now")
        assert (state(), settings()) == before
        assert not torch.cuda.is_initialized()


def test_every_fact_of_a_run_has_a_rule_and_late_ones_are_known_as_late():
    early = set()

    def program(model):
        early.update(session.contract)
        list(DataLoader([1, 2]))
        model.load_state_dict(model.state_dict())

    with capturing(steps=NO_EVENTS) as captured:
        session = captured.session._facts
        program(Inner())
        model = Inner()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    contract = session.contract
    assert not [key for key in contract if rule_of(key) is UNKNOWN_KEY]
    assert not [key for key in contract.keys() - early if key != "late" and not is_late(key)], "a run killed early would conflict"
    assert not [key for key, value in contract.items() if isinstance(value, dict) and set(value) == {"unknown"}]
