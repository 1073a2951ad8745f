# ruff: noqa: E402  (torch may be missing)
"""Operators that are still running when the capture ends do not hold back what came after them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.ids import Marker
from tests.support.capturing import capturing


@pytest.fixture
def slow():
    """An operator of the program's own that waits inside its kernel; (operator, begun, may end)."""
    begun, go_on = threading.Event(), threading.Event()
    library = torch.library.Library("opguard_unfinished", "FRAGMENT")
    library.define("slow(Tensor x) -> Tensor")

    def kernel(x):
        begun.set()
        assert go_on.wait(60)
        return x.clone()

    library.impl("slow", kernel, "CPU")
    yield torch.ops.opguard_unfinished.slow, begun, go_on
    go_on.set()
    library._destroy()


def test_an_operator_of_another_thread_that_never_ends_is_a_gap_and_the_end_is_written(slow):
    operator, begun, go_on = slow
    x = torch.ones(2)

    def work():
        operator(x)

    with capturing() as seen:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert begun.wait(60)
        x * 5
    (gap,) = seen.gaps
    assert (gap.operator, gap.args) == ("opguard_unfinished.slow.default", "still running at the end")
    assert gap.thread == f"Thread:{work.__qualname__}"
    assert seen.markers[-1].operator == Marker.RUN_END.value
    assert seen.of("mul").seq > gap.seq
    assert seen.coverage["gaps"]["still-running-operator"]["touches_state"] is False
    written = len(seen.sink.events)
    go_on.set()
    thread.join(60)
    assert len(seen.sink.events) == written
    assert seen.session.context.outbox.num_late == 1


def test_a_capture_that_ends_inside_an_operator_writes_its_end():
    library = torch.library.Library("opguard_unfinished", "FRAGMENT")
    library.define("ends(Tensor x) -> Tensor")

    def run():
        model = torch.nn.Linear(2, 2)
        with capturing() as seen:

            def ends(x):
                seen.session.stop("signal")
                return x.clone()

            library.impl("ends", ends, "CPU")
            model(torch.ones(1, 2))
            with torch.no_grad():
                torch.ops.opguard_unfinished.ends(model.weight)
        return seen

    # On a thread of its own: torch puts our mode back when the operator is over, and here the program goes on.
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(run).result()
    library._destroy()
    assert [event.operator for event in seen.gaps] == ["opguard_unfinished.ends.default"]
    assert (seen.markers[-1].operator, seen.markers[-1].args) == (Marker.RUN_END.value, "reason=signal")
    assert seen.states, "the state at the end is there"
    assert seen.coverage["gaps"]["still-running-operator"]["touches_state"] is True
