# ruff: noqa: E402  (torch may be missing)
"""Triton's own code launches, without a card: kernels are compiled for one, and a driver of ours runs what stands for them."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA; no card")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

from tests.support.capturing import capturing
from tests.support.outside.triton_kernels import add_kernel, emulated_add, emulated_scale, scale_kernel
from tests.support.outside.triton_without_card import without_card


@pytest.fixture
def driver(tmp_path, monkeypatch):
    from triton.runtime.driver import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    before = driver._active
    yield without_card({"add_kernel": emulated_add, "scale_kernel": emulated_scale})
    driver._active = before


def test_launches_of_triton_are_events_with_what_their_own_ttir_says(driver):
    x, y, out = torch.randn(100), torch.randn(100), torch.empty(100)
    with capturing("full") as captured:
        add_kernel[(4,)](x, y, out, 100, BLOCK=32)
        add_kernel[lambda meta: (-(-100 // meta["BLOCK"]),)](x, y, out_ptr=out, n=100, BLOCK=64)
        scale_kernel[lambda meta: (-(-100 // meta["BLOCK"]),)](x, 100, 0.5)
        scale_kernel[lambda meta: (-(-100 // meta["BLOCK"]),)](x, 100, 0.5)
        x + 1
    events = [event for event in captured.events if event.operator.startswith("triton.")]
    assert [event.operator for event in events] == ["triton.add_kernel"] * 2 + ["triton.scale_kernel"] * 2
    assert [event.args for event in events[:2]] == ["n=100;BLOCK=32;grid=[4]", "n=100;BLOCK=64;grid=[2]"]
    assert "EVEN=False" in events[2].args and events[2].args.endswith(("grid=[4]", "grid=[2]"))
    assert [list(captured.slots(event, "mut")) for event in events] == [["mut.2"]] * 2 + [["mut.0"]] * 2
    assert captured.text(events[0]) == "add_kernel[(4,)](x, y, out, 100, BLOCK=32)"
    assert captured.slots(captured.of("add"))["in.0"].mix64 == captured.slots(events[3])["mut.0"].mix64
    assert captured.session.engines["outside"]["written_by_ttir"] == 4
    assert driver.launched.count("scale_kernel") > 2  # autotuning tried both
    assert len(captured.events) == 5
    assert captured.coverage["gaps"] == {}
