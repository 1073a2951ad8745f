"""The program of one file rebuilds any call of torch's own operators, says when an operator disagrees with itself, and runs no text."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest

from opguard_core.evidence.repro import SCRIPT, Captured, write_repro
from opguard_core.evidence.repro.bundle import TEMPLATE
from opguard_core.fingerprint.cpu import digests_of_bytes
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.kept import Block, Kept, KeptSlot

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def called(operator: str, *args: Any, text: str = "", stream: str = "", **kwargs: Any) -> Kept:
    """One call of an operator, kept as capture keeps it."""
    namespace, base, overload = operator.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    schema = found._schema
    blocks: dict[str, Block] = {}
    known: dict[str, KeptSlot] = {}

    def take(name: str, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                take(f"{name}.{index}", item)
        elif isinstance(value, torch.Tensor):
            raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            dtype = str(value.dtype).removeprefix("torch.")
            digest = f"{digests_of_bytes(raw).mix64:016x}"
            blocks[name] = Block(dtype, tuple(value.shape), raw)
            direction = "in" if name.startswith(("in", "kw")) else "out"
            known[name] = KeptSlot(
                name, direction, "probed", dtype, tuple(value.shape), tuple(value.stride()), "cpu", len(raw), digest, digest,
                shift=value.storage_offset(),
            )  # fmt: skip

    for index, value in enumerate(args):
        take(f"in.{index}", value)
    for name, value in kwargs.items():
        take(f"kw.{name}", value)
    if stream:
        take("rng", torch.get_rng_state())
    returned = found(*args, **kwargs)
    results = returned if isinstance(returned, (list, tuple)) and len(schema.returns) != 1 else [returned]
    for index, (value, described) in enumerate(zip(results, schema.returns, strict=False)):
        if described.alias_info is None:
            take(f"out.{index}", value)
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write and index < len(args):
            take(f"mut.{index}", args[index])
    return Kept(BoundaryKey(0, 0, "forward", operator, "", "f", "x"), 1, text, stream, "", blocks, known)


def run(folder, reference: Kept | None, suspect: Kept | None = None, runs: int = 20, threads: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    from tests.support.inside import repeated

    both = zip((reference, suspect), threads, strict=True)
    sides = [None if one is None else Captured(one, "ev:0123456789ab/0/1", {"threads.intraop": number}) for one, number in both]
    write_repro(folder, (sides[0], sides[1]))
    return repeated(folder / SCRIPT, runs)


def tensor(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(getattr(torch, dtype))


CALLS = {
    "matrix product": lambda: called("aten.addmm.default", tensor(8), tensor(4, 6), tensor(6, 8, seed=1), text="beta=1;alpha=1"),
    "transposed memory": lambda: called("aten.mm.default", tensor(6, 4).t(), tensor(8, 6).t()),
    "an expanded bias": lambda: called("aten.add.Tensor", tensor(1, 5).expand(4, 5), tensor(4, 5, seed=2), text="alpha=1"),
    "an offset view": lambda: called("aten.exp.default", tensor(9, 5)[3:]),
    "a number for a tensor": lambda: called("aten.mul.Tensor", tensor(4), 0.3, text="other=0x1.3333333333333p-2"),
    "a list": lambda: called("aten.cat.default", [tensor(2, 3), tensor(4, 3, seed=4)], text="dim=0"),
    "an index with a gap": lambda: called("aten.index.Tensor", tensor(4, 5), [None, torch.tensor([4, 0, 1])]),
    "written in place": lambda: called("aten.mul_.Tensor", tensor(3, 3), tensor(3, 3, seed=5)),
    "a list written in place": lambda: called(
        "aten._foreach_add_.Scalar", [tensor(3), tensor(2, seed=1)], 0.5, text="scalar=0x1.0000000000000p-1"
    ),
    "two results": lambda: called("aten.max.dim", tensor(4, 5), 1, text="dim=1;keepdim=False"),
    "no tensor read": lambda: called("aten.arange.start_step", 0, 9, 2, text="start=0;end=9;step=2"),
    "a cast": lambda: called("aten._to_copy.default", tensor(4, 4), dtype=torch.bfloat16, text="dtype=bfloat16;non_blocking=False"),
    "bfloat16": lambda: called("aten.gelu.default", tensor(4, 4, dtype="bfloat16"), text="approximate='none'"),
    "complex": lambda: called("aten.mul.Tensor", tensor(4, dtype="complex64"), tensor(4, seed=3, dtype="complex64")),
    "empty": lambda: called("aten.neg.default", tensor(0, 4)),
    "a scalar": lambda: called("aten.sqrt.default", tensor(3).abs().sum()),
    "random numbers": lambda: called("aten.bernoulli.p", tensor(50), 0.5, text="p=0x1.0000000000000p-1", stream="cpu"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_rebuilt_to_the_bit(name, tmp_path):
    made = CALLS[name]()
    side = run(tmp_path, made)["sides"]["reference"]
    assert (side["gives"]["reference"], side["runs"], side["disagrees"]) == (20, 20, 0)


def test_bits_that_the_operator_does_not_give_are_laid_outside_of_it(tmp_path):
    made = called("aten.exp.default", tensor(4, 4))
    data = bytearray(made.slots["out.0"].data)
    data[5] ^= 64
    broken = Kept(made.boundary, 2, "", "", "", {**made.slots, "out.0": Block("float32", (4, 4), bytes(data))}, made.known)
    facts = run(tmp_path, made, broken)
    assert (facts["conclusion"], facts["differs"]) == ("not in the operator", [])
    assert facts["sides"]["suspect"]["gives"] == {"reference": 20, "suspect": 0, "other": 0}


def test_bits_that_follow_from_a_setting_are_not_laid_outside_of_what_was_captured(tmp_path):
    values, made = tensor(300_000), []
    before = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            made.append(called("aten.sum.default", values))
    finally:
        torch.set_num_threads(before)
    if made[0].slots["out.0"].data == made[1].slots["out.0"].data:
        pytest.skip("this torch sums in one order, whatever the number of threads")
    facts = run(tmp_path, *made, threads=(1, 2))
    assert (facts["conclusion"], facts["differs"]) == ("cause before", ["settings"])


def test_a_setting_that_changes_nothing_does_not_explain_other_bits(tmp_path):
    made = called("aten.exp.default", tensor(4, 4))
    other = Kept(made.boundary, 2, "", "", "", {**made.slots, "out.0": Block("float32", (4, 4), bytes(64))}, made.known)
    facts = run(tmp_path, made, other, threads=(1, 2))
    assert (facts["conclusion"], facts["differs"]) == ("not in the operator", ["settings"])


def test_an_operator_that_disagrees_with_itself_is_told_with_its_rate(tmp_path):
    facts = run(tmp_path, called("aten.bernoulli.p", tensor(50), 0.5, text="p=0x1.0000000000000p-1"))
    assert facts["conclusion"] == "nondeterministic"
    assert facts["sides"]["reference"]["disagrees"] >= 15


def test_two_operators_each_give_their_own_bits(tmp_path):
    facts = run(tmp_path, called("aten.exp.default", tensor(5)), called("aten.expm1.default", tensor(5)))
    assert (facts["conclusion"], facts["differs"]) == ("cause before", ["operator"])


def test_text_of_a_run_becomes_no_code():
    script = runpy.run_path(str(TEMPLATE), run_name="repro")
    for value in ({"eval": "1"}, {"float": "1", "text": "x"}, {"dtype": "nn"}, {"memory_format": "os"}, {"layout": "jagged"}, {}):
        with pytest.raises(script["CannotRun"]):
            script["literal"](value)
    assert script["literal"]({"text": "__import__('os')"}) == "__import__('os')"
    for operator in ("aten.__class__.mro", "aten.mul.__call__", "os.system.default", "aten.mul.Tensor;x", "aten.nowhere.default"):
        with pytest.raises(script["CannotRun"]):
            script["Side"]("suspect", {"operator": operator, "inputs": {}, "results": {}, "arguments": {}}, {})


def test_a_file_that_is_cut_is_no_data(tmp_path):
    script = runpy.run_path(str(TEMPLATE), run_name="repro")
    path = tmp_path / "repro.safetensors"
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(script["CannotRun"]):
        script["load"](path)
