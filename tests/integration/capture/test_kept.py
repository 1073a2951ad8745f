# ruff: noqa: E402  (torch may be missing)
"""Kept boundaries hold what the program itself has in its hands, and the program cannot tell that they are kept."""

import gc
import os
import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.fingerprint.cpu import digests_of_bytes
from opguard_core.trace import kept as kept_files
from tests.support.keeping import observe


def logical(tensor) -> bytes:
    """Logical bytes by a way of their own: element after element through numpy, on a copy."""
    dense = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def found(run, name, index=0):
    return bytes(run.kept(index).slots[name].data)


def kept(tmp_path, code, *operators, **options):
    """Run once to learn the keys, and again to keep them."""
    keys = observe(tmp_path / "first", code).keys(*operators)
    assert keys
    return observe(tmp_path / "second", code, keep=keys, **options), keys


def test_results_and_inputs_are_what_the_program_holds(tmp_path):
    def code():
        x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        w = torch.linspace(-1, 1, 20).reshape(4, 5)
        return x, w, x @ w

    run, _ = kept(tmp_path, code, "mm")
    x, w, y = map(logical, run.result)
    assert (found(run, "in.0"), found(run, "in.1"), found(run, "out.0")) == (x, w, y)
    boundary = run.kept()
    assert boundary.boundary.text == "x @ w"
    assert {name: (slot.dtype, slot.shape) for name, slot in boundary.known.items()} == {
        "in.0": ("float32", (3, 4)),
        "in.1": ("float32", (4, 5)),
        "out.0": ("float32", (3, 5)),
    }


def test_views_are_kept_in_the_order_of_their_values_not_of_their_memory(tmp_path):
    def code():
        base = torch.arange(24.0).reshape(4, 6)
        views = [base.t(), base[::2, 1::2], base.expand(2, 4, 6), base.flip(0), base[1:3]]
        return views, [view * 2 for view in views]

    run, keys = kept(tmp_path, code, "mul")
    views, results = run.result
    assert len(keys) == 5
    assert [found(run, "in.0", i) for i in range(5)] == list(map(logical, views))
    assert [found(run, "out.0", i) for i in range(5)] == list(map(logical, results))
    assert run.kept(0).known["in.0"].strides == (1, 6)
    assert run.kept(4).known["in.0"].shift == 6


def test_an_argument_written_in_place_is_kept_before_and_after(tmp_path):
    def code():
        x = torch.arange(6.0)
        before = x.clone()
        x.mul_(3)
        return before, x

    run, _ = kept(tmp_path, code, "mul_")
    assert (found(run, "in.0"), found(run, "mut.0")) == tuple(map(logical, run.result))


def test_lists_are_kept_one_by_one(tmp_path):
    def code():
        tensors = [torch.full((n,), float(n)) for n in (1, 0, 3)]
        before = [tensor.clone() for tensor in tensors]
        torch._foreach_mul_(tensors, 2.5)
        return before, tensors

    run, _ = kept(tmp_path, code, "_foreach_mul_")
    before, after = run.result
    assert [found(run, f"in.0.{n}") for n in range(3)] == list(map(logical, before))
    assert [found(run, f"mut.0.{n}") for n in range(3)] == list(map(logical, after))


TYPES = ["bfloat16", "float16", "float64", "int64", "uint8", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16"]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_element_keeps_its_bits(tmp_path, name):
    dtype = getattr(torch, name)
    raw = torch.from_numpy(np.random.default_rng(7).integers(0, 2, 6 * 16, dtype=np.uint8) if name == "bool" else _bits())
    source = raw[: 6 * dtype.itemsize].view(dtype).reshape(2, 3)

    def code():
        return source.clone(), source.t().clone()

    run, _ = kept(tmp_path, code, "clone")
    for index, result in enumerate(run.result):
        assert found(run, "out.0", index) == logical(result)
        assert run.kept(index).slots["out.0"].dtype == name


def _bits():
    """All kinds of bit patterns: NaNs with payloads, infinities, subnormals, negative zeros among them."""
    special = struct.pack("<8I", 0x7FC12345, 0xFF800001, 0x7F800000, 0x00000001, 0x80000000, 0x807FFFFF, 0xFFFFFFFF, 0x3F800000)
    return np.frombuffer((special * 3)[: 6 * 16], dtype=np.uint8).copy()


def test_conjugate_and_negative_views_are_kept_as_the_values_they_show(tmp_path):
    def code():
        z = torch.tensor([[1 + 2j, 3 - 4j], [0 + 1j, -5j]])
        return z.conj(), torch.add(z.conj(), 1), z.conj().imag, torch.add(z.conj().imag, 1)

    run, _ = kept(tmp_path, code, "add")
    conjugate, _, negative, _ = run.result
    assert (found(run, "in.0", 0), found(run, "in.0", 1)) == (logical(conjugate), logical(negative))


def test_empty_and_scalar_tensors_are_kept(tmp_path):
    def code():
        return torch.zeros(0, 3) + 1, torch.tensor(2.5) + 1

    run, _ = kept(tmp_path, code, "add")
    assert (found(run, "out.0", 0), run.kept(0).slots["out.0"].shape) == (b"", (0, 3))
    assert (found(run, "out.0", 1), run.kept(1).slots["out.0"].shape) == (struct.pack("<f", 3.5), ())


def training():
    """A model with a recomputed part, dropout and an optimizer; returns what hooks of its own saw."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(3)
    seen = {"gradients": [], "outputs": []}
    first, second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
    second.register_forward_hook(lambda module, args, output: seen["outputs"].append(output.detach().clone()))
    second.weight.register_hook(lambda gradient: seen["gradients"].append(gradient.detach().clone()))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(2):
        x = torch.randn(5, 4)
        hidden = checkpoint(lambda x: torch.nn.functional.dropout(torch.tanh(first(x)), 0.5), x, use_reentrant=False)
        loss = second(hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen["state"] = [parameter.detach().clone() for parameter in (*first.parameters(), *second.parameters())]
    return seen


def test_everything_of_a_training_can_be_kept_and_is_what_the_probe_saw(tmp_path):
    bare = training()
    keys = observe(tmp_path / "first", training).keys()
    phases = {key.phase for key in keys}
    assert phases >= {"forward", "recompute", "backward", "optimizer"}
    run = observe(tmp_path / "second", training, keep=keys)
    for name, values in bare.items():
        assert [logical(value) for value in run.result[name]] == [logical(value) for value in values], name
    slots = 0
    for index, key in enumerate(keys):
        boundary = run.kept(index)
        assert boundary.boundary == key
        _, rows = run.trace.event_at(boundary.seq)
        for row in rows:
            slot = boundary.known[row.slot]
            assert (slot.dtype, ",".join(map(str, slot.shape)), slot.status) == (row.dtype, row.shape, row.status)
            if slot.reason:
                assert row.status in ("uninitialised", "metadata"), slot
                continue
            slots += 1
            assert slot.mix64 == slot.kept_mix64 == f"{row.mix64:016x}"
            assert digests_of_bytes(boundary.slots[row.slot].data).mix64 == row.mix64
    assert slots > 100
    assert run.gaps == {}


def test_hooks_of_the_program_saw_the_bytes_that_were_kept(tmp_path):
    keys = observe(tmp_path / "first", training).keys()
    run = observe(tmp_path / "second", training, keep=keys)
    outputs = [index for index, key in enumerate(keys) if key.operator.startswith("aten.addmm") and key.text == "second(hidden)"]
    assert [found(run, "out.0", index) for index in outputs] == list(map(logical, run.result["outputs"]))
    assert [keys[index].occurrence for index in outputs] == [0, 0]
    gradients = {logical(gradient) for gradient in run.result["gradients"]}
    backward = {found(run, "out.0", i) for i, key in enumerate(keys) if key.phase == "backward" and key.operator.startswith("aten.mm")}
    assert gradients <= {bytes(data) for data in backward}


def test_each_occurrence_has_a_file_of_its_own(tmp_path):
    def code():
        total = torch.zeros(3)
        for _ in range(4):
            total = total + 1
        return total

    run, keys = kept(tmp_path, code, "add")
    assert [key.occurrence for key in keys] == [0, 1, 2, 3]
    assert [np.frombuffer(found(run, "out.0", i), np.float32).tolist() for i in range(4)] == [[float(i + 1)] * 3 for i in range(4)]


def test_a_draw_keeps_the_state_of_its_generator_and_moves_nothing(tmp_path):
    def code():
        torch.manual_seed(11)
        state = torch.get_rng_state()
        return state, torch.nn.functional.dropout(torch.ones(64), 0.5), torch.get_rng_state()

    bare = code()
    run, _keys = kept(tmp_path, code, "bernoulli_", "native_dropout")
    assert [logical(value) for value in run.result] == [logical(value) for value in bare]
    assert found(run, "rng") == logical(bare[0])
    boundary = run.kept()
    assert (boundary.rng_stream, boundary.rng_before) == ("cpu", boundary.known["rng"].kept_mix64)
    state = torch.frombuffer(bytearray(found(run, "rng")), dtype=torch.uint8)
    torch.set_rng_state(state)
    assert logical(torch.nn.functional.dropout(torch.ones(64), 0.5)) == logical(bare[1])


def test_what_does_not_fit_is_left_out_with_its_reason_and_the_rest_is_kept(tmp_path):
    def code():
        return torch.ones(100) + torch.ones(1), torch.ones(2) * 2

    run, _ = kept(tmp_path, code, "add", "mul", limit_bytes=416)
    assert "do not fit" in run.kept(0).known["out.0"].reason
    assert set(run.kept(0).slots) == {"in.0", "in.1"}
    assert set(run.kept(1).slots) == {"in.0"}  # 12 bytes were left
    sizes = sum(len(block.data) for index in range(2) for block in run.kept(index).slots.values())
    assert sizes == 412
    assert run.gaps == {}
    assert run.facts["kept"]["kept-0.safetensors"]["left_out"] == ["out.0"]


def test_a_boundary_that_does_not_occur_is_told(tmp_path):
    def code():
        return torch.ones(3) + 1

    (key,) = observe(tmp_path / "first", code).keys("add")
    other = type(key)(**{**key.as_dict(), "occurrence": 5})
    run = observe(tmp_path / "second", code, keep=[other])
    assert not run.kept_path().exists()
    assert run.facts["kept"] == {"kept-0.safetensors": {"reason": "the boundary did not occur"}}


def test_an_operator_that_raises_keeps_what_it_read_and_raises_as_always(tmp_path):
    def code():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            torch.ones(2, 3) @ torch.ones(2, 3)
        return str(caught.value)

    bare = code()
    run, _ = kept(tmp_path, code, "mm")
    assert run.result == bare
    assert dict(run.kept().notes) == {"raised": "RuntimeError"}
    assert set(run.kept().slots) == {"in.0", "in.1"}


def test_a_full_disk_is_a_gap_and_the_program_goes_on(tmp_path, monkeypatch):
    def code():
        return torch.ones(3) + 1, torch.ones(3) * 3

    keys = observe(tmp_path / "first", code).keys("add", "mul")

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_files, "write_atomic", full)
    run = observe(tmp_path / "second", code, keep=keys)
    assert [value.tolist() for value in run.result] == [[2.0] * 3, [3.0] * 3]
    assert [event.kind for event in (run.trace.event_at(0)[0], run.trace.event_at(1)[0])] != ["gap", "gap"]
    assert run.gaps["kept-file"]["count"] == 2
    assert run.gaps["kept-file"]["touches_state"] is False
    assert "No space left" in run.facts["kept"]["kept-1.safetensors"]["reason"]


def test_a_failure_of_ours_costs_the_file_and_not_the_event(tmp_path, monkeypatch):
    from opguard_core.engines import keeper

    def code():
        return torch.ones(3) + 1

    keys = observe(tmp_path / "first", code).keys("add")

    def broken(tensor):
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(keeper, "logical_bytes", broken)
    run = observe(tmp_path / "second", code, keep=keys)
    assert run.result.tolist() == [2.0] * 3
    event, slots = run.trace.event_at(next(iter(_seqs(run, "aten.add.Tensor"))))
    assert (event.kind, [slot.status for slot in slots]) == ("operator", ["probed"] * len(slots))
    assert "MemoryError" in run.facts["kept"]["kept-0.safetensors"]["reason"]


def _seqs(run, operator):
    for table in run.trace.iter_windows():
        yield from (int(table.events["seq"][i]) for i in range(len(table)) if table.event(i).operator == operator)


def test_memory_that_nobody_has_written_and_shapes_are_not_kept(tmp_path):
    def code():
        return torch.empty(3).zero_(), torch.zeros_like(torch.ones(2))

    run, _ = kept(tmp_path, code, "empty", "zero_", "zeros_like")
    boundaries = {run.kept(i).boundary.operator: run.kept(i) for i in range(3)}
    assert "nobody has written" in boundaries["aten.empty.memory_format"].known["out.0"].reason
    assert "does not read it" in boundaries["aten.zero_.default"].known["in.0"].reason
    assert set(boundaries["aten.zero_.default"].slots) == {"mut.0"}


def test_no_tensor_of_the_program_outlives_its_boundary(tmp_path):
    import weakref

    watched = []

    def code():
        x = torch.ones(1000)
        y = x + 1
        watched.extend([weakref.ref(x), weakref.ref(y)])
        del x, y
        gc.collect()
        return [reference() is None for reference in watched[-2:]]

    run, _ = kept(tmp_path, code, "add")
    assert run.result == [True, True]


@pytest.mark.parametrize("mode", ["full", "trusted"])
def test_a_mode_that_reads_less_keeps_what_it_knows(tmp_path, mode):
    def code():
        x = torch.arange(4.0)
        y = torch.cumsum(x, 0)
        return y, torch.cumsum(y, 0)

    run, _ = kept(tmp_path, code, "cumsum", mode=mode)
    assert (found(run, "in.0", 1), found(run, "out.0", 1)) == tuple(map(logical, run.result))
    assert run.kept(1).known["in.0"].kept_mix64 == run.kept(1).known["in.0"].mix64


def test_files_are_private(tmp_path):
    def code():
        return torch.ones(3) + 1

    run, _ = kept(tmp_path, code, "add")
    assert os.stat(run.kept_path()).st_mode & 0o777 == 0o600
