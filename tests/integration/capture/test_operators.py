# ruff: noqa: E402  (torch may be missing)
"""Each operator is one event with exactly the tensors it read, returned and wrote."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing
from tests.support.keeping import observe
from tests.support.native import native_or_skip


def test_an_operator_is_recorded_with_its_inputs_output_and_arguments():
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    with capturing() as seen:
        z = torch.add(x, y, alpha=2)
    event = seen.of("add")
    slots = seen.slots(event)
    assert list(slots) == ["in.0", "in.1", "out.0"]
    assert event.args == "alpha=2"
    assert (slots["in.0"].mix64, slots["in.1"].mix64, slots["out.0"].mix64) == tuple(fingerprint(t).mix64 for t in (x, y, z))
    assert (slots["in.0"].dtype, slots["in.0"].shape, slots["in.0"].strides, slots["in.0"].nbytes) == ("float32", "4,8", "8,1", 128)
    assert (slots["in.0"].extent_lo, slots["in.0"].extent_hi, slots["in.0"].device) == (0, 128, "cpu")


def test_schema_defaults_are_filled_in_so_that_explicit_and_implicit_calls_agree():
    x = torch.ones(3, 4)
    with capturing() as seen:
        torch.sum(x, dim=1)
        torch.sum(x, dim=[1], keepdim=False, dtype=None)
        torch.add(x, x)
        torch.add(x, x, alpha=1)
    assert seen.of("sum", 0).args == seen.of("sum", 1).args == "dim=[1];keepdim=False;dtype=None"
    assert seen.of("add", 0).args == seen.of("add", 1).args


def test_a_number_in_a_tensor_position_is_an_argument_in_exact_text():
    x = torch.ones(3)
    with capturing() as seen:
        x * 0.1
        x * float("nan")
        x * (1 + 2j)
        x + True
    assert [event.args for event in seen.events[:3]] == [
        "other=" + (0.1).hex(),
        "other=nan",
        "other=complex(0x1.0000000000000p+0,0x1.0000000000000p+1)",
    ]
    assert seen.events[3].args == "other=True;alpha=1"


def test_where_a_tensor_lives_is_no_argument_but_its_dtype_is():
    with capturing() as seen:
        torch.zeros(2, device="cpu", dtype=torch.float64, layout=torch.strided)
        torch.zeros(2, dtype=torch.float64)
        torch.randint(0, 4, (3,))
    assert seen.of("zeros", 0).args == seen.of("zeros", 1).args == "size=[2];dtype=float64"
    assert "dtype=int64" in seen.of("randint").args


def test_views_and_metadata_operators_give_no_event():
    x = torch.arange(24.0)
    with capturing() as seen:
        y = x.view(4, 6).t()[1:, :2].unsqueeze(0).expand(3, -1, -1).detach()
        y.size(), y.is_contiguous(), x.requires_grad_(False), y.chunk(2), y.storage_offset()
    assert seen.events == []


def test_a_view_shows_the_bytes_it_covers_in_its_storage():
    x = torch.arange(24.0)
    with capturing() as seen:
        x + 1
        x.view(4, 6)[1:3, 2:4] + 1
    whole, part = (seen.slots(seen.of("add", n))["in.0"] for n in (0, 1))
    assert whole.storage == part.storage
    assert (part.extent_lo, part.extent_hi, part.nbytes) == (8 * 4, 16 * 4, 16)


def test_an_in_place_operator_shows_its_argument_before_and_after():
    x = torch.ones(4)
    with capturing() as seen:
        x.mul_(3)
        x + 1
    slots, later = seen.slots(seen.of("mul_")), seen.slots(seen.of("add"))["in.0"]
    assert list(slots) == ["in.0", "mut.0"]
    assert slots["in.0"].mix64 == fingerprint(torch.ones(4)).mix64
    assert slots["mut.0"].mix64 == fingerprint(x).mix64 == later.mix64
    assert slots["mut.0"].version == later.version == slots["in.0"].version + 1


def test_arguments_written_inside_lists_are_seen_one_by_one():
    xs = [torch.ones(2), torch.ones(3)]
    with capturing() as seen:
        torch._foreach_add_(xs, 2.0)
    slots = seen.slots(seen.of("_foreach_add_"))
    assert list(slots) == ["in.0.0", "in.0.1", "mut.0.0", "mut.0.1"]
    assert [slots[f"mut.0.{n}"].mix64 for n in (0, 1)] == [fingerprint(x).mix64 for x in xs]


def test_a_fused_optimizer_shows_every_list_it_writes():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.full((3,), 0.5)
    optimizer = torch.optim.AdamW([p], fused=True)
    with capturing() as seen:
        optimizer.step()
    event = seen.of("_fused_adamw_")
    written = seen.slots(event, "mut")
    assert {"mut.0.0", "mut.2.0", "mut.3.0"} <= set(written)
    assert written["mut.0.0"].mix64 == fingerprint(p.detach()).mix64
    assert "lr=" + (1e-3).hex() in event.args


def test_gradient_scaler_kernels_show_their_lists_and_flags():
    grads, found, scale = [torch.ones(2), torch.ones(3)], torch.zeros(1), torch.full((1,), 0.5)
    with capturing() as seen:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    assert set(seen.slots(seen.of("_amp_foreach_non_finite_check_and_unscale_"), "mut")) == {"mut.0.0", "mut.0.1", "mut.1"}


def test_an_out_argument_is_written_and_never_read():
    x, out = torch.ones(3), torch.empty(3)
    with capturing() as seen:
        torch.mul(x, 2, out=out)
    slots = seen.slots(seen.events[-1])
    assert slots["kw.out"].status == "metadata"
    assert slots["mut.out"].mix64 == fingerprint(out).mix64


def test_running_statistics_are_seen_although_the_schema_does_not_declare_them():
    norm = torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    with capturing() as seen:
        norm(x)
        norm.eval()
        norm(x)
    training, evaluation = (seen.of("native_batch_norm", n) for n in (0, 1))
    written = seen.slots(training, "mut")
    assert set(written) == {"mut.3", "mut.4"}
    assert written["mut.3"].mix64 == fingerprint(norm.running_mean).mix64
    assert written["mut.3"].name == "buffer:BatchNorm1d.running_mean" or written["mut.3"].name == "buffer:running_mean"
    assert seen.slots(evaluation, "mut") == {}


@pytest.mark.parametrize("engine", ["dispatch", "native"])
@pytest.mark.parametrize("mode", ["full", "trusted"])
def test_what_is_written_undeclared_is_not_carried_as_it_was(mode, engine, tmp_path):
    if engine == "native":
        native_or_skip()
    mean, var, x = torch.zeros(3), torch.ones(3), torch.randn(2, 3, 4)

    def code():
        torch.stack([mean, var])
        torch.batch_norm_update_stats(x, mean, var, 0.1)
        torch.cumsum(mean, 0)

    trace = observe(tmp_path / "run", code, mode=mode, engine=engine).trace
    (table,) = trace.iter_windows()
    slots = {table.event(at).operator: {slot.slot: slot for slot in table.slots_of(at)} for at in range(len(table))}
    written, read = slots["aten.batch_norm_update_stats.default"], slots["aten.cumsum.default"]["in.0"]
    assert {name for name in written if name.startswith("mut")} == {"mut.1", "mut.2"}
    assert read.mix64 == written["mut.1"].mix64 == fingerprint(mean).mix64 != written["in.1"].mix64


def test_the_memory_that_a_recurrent_layer_works_in_is_neither_read_nor_carried_by_its_backward():
    lstm = torch.nn.LSTM(4, 4)
    with capturing() as seen:
        lstm(torch.randn(3, 2, 4))[0].sum().backward()
    if "mkldnn_rnn_layer.default" not in seen.operators():
        pytest.skip("this processor has another kernel for it")
    backward = seen.slots(seen.of("mkldnn_rnn_layer_backward"))
    assert backward["in.22"].status == "uninitialised" and "mut.22" not in backward


def test_a_composite_operator_is_recorded_by_the_operators_inside_it():
    linear = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    with capturing() as seen:
        linear(x)
        with torch.inference_mode():
            linear(x)
    assert seen.operators() == ["addmm.default", "addmm.default"]


def test_results_in_lists_have_one_slot_each():
    with capturing() as seen:
        torch._foreach_mul([torch.ones(2), torch.ones(3)], 2.0)
    assert list(seen.slots(seen.of("_foreach_mul"), "out")) == ["out.0.0", "out.0.1"]


def test_optional_and_missing_tensors_have_no_slot():
    x, w = torch.randn(1, 2, 8), torch.randn(3, 2, 3)
    with capturing() as seen:
        torch.nn.functional.conv1d(x, w)
        x[:, torch.tensor([0]), :]
    assert list(seen.slots(seen.of("convolution"))) == ["in.0", "in.1", "out.0"]
    assert list(seen.slots(seen.of("index"))) == ["in.0", "in.1.1", "out.0"]


def test_a_read_into_python_is_an_event_of_its_own():
    x = torch.tensor([1.5])
    with capturing() as seen:
        assert x.item() == 1.5
        assert torch.equal(x, x)
        x.tolist(), x.numpy(), float(x), bool(x > 1)
    kinds = [(event.kind, event.operator) for event in seen.events if event.kind == "read"]
    assert [name for _, name in kinds] == [
        "aten._local_scalar_dense.default", "aten.equal.default", "python.tolist", "python.numpy",
        "aten._local_scalar_dense.default", "aten._local_scalar_dense.default",
    ]  # fmt: skip
    assert all(seen.slots(event)["in.0"].status == "probed" for event in seen.events if event.kind == "read")


def test_saving_is_a_read_of_every_tensor_by_its_keys(tmp_path):
    model = torch.nn.Linear(2, 2)
    with capturing() as seen:
        torch.save({"model": model.state_dict(), "extra": [torch.ones(1)]}, tmp_path / "x.pt")
    assert {"in.model.weight", "in.model.bias", "in.extra.0"} == set(seen.slots(seen.of("python.save")))


def test_an_operator_that_raises_is_recorded_with_what_it_read():
    a = torch.ones(3, 4)
    with capturing() as seen, pytest.raises(RuntimeError, match="cannot be multiplied"):
        a.mm(a)
    event = seen.of("mm")
    assert event.args.endswith("raised=RuntimeError")
    assert set(seen.slots(event)) == {"in.0", "in.1"}


def test_a_custom_operator_is_a_boundary_and_its_hidden_write_is_found():
    @torch.library.custom_op("opguard_test::honest", mutates_args=["x"])
    def honest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    @torch.library.custom_op("opguard_test::liar", mutates_args=[])
    def liar(x: torch.Tensor) -> torch.Tensor:
        x.data.add_(1)
        return x * 2

    x, y = torch.ones(3), torch.ones(3)
    with capturing() as seen:
        honest(x, y)
        liar(y)
    assert set(seen.slots(seen.of("honest"))) == {"in.0", "in.1", "out.0", "mut.0"}
    slots = seen.slots(seen.of("liar"))
    assert slots["mut.0"].mix64 == fingerprint(y).mix64 != slots["in.0"].mix64
    assert seen.coverage["undeclared_writes"] == 1


def test_an_error_of_the_program_passes_an_operator_that_takes_no_numbers_as_it_is():
    """Only what was refused for a number where a tensor is wanted is called again; operators of higher order have no schema at all."""
    from opguard_core.engines.operators import call_with_tensors

    for function in (torch.ops.higher_order.cond, torch.ops.aten.add.Tensor):
        with pytest.raises(RuntimeError, match="the program's own"):
            try:
                raise RuntimeError("the program's own")
            except RuntimeError:
                call_with_tensors(function, (1.0, 10**40), {})
