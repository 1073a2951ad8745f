"""Steps hold phases, and a phase holds what interrupts it and lets it go on."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_harness.workspace.timeline.phases import Span, spans


def test_a_collective_between_two_pieces_of_a_backward_lies_in_it() -> None:
    phases = ["forward", "backward", "collective", "backward", "optimizer"]
    assert spans([0] * 5, phases) == [
        Span("step 0", 0, 5, 0),
        Span("forward", 0, 1, 1),
        Span("backward", 1, 4, 1),
        Span("collective", 2, 3, 2),
        Span("optimizer", 4, 5, 1),
    ]


def test_a_phase_that_is_not_followed_by_the_one_before_it_stands_beside_it() -> None:
    assert [span.depth for span in spans([0] * 3, ["backward", "collective", "optimizer"])] == [0, 1, 1, 1]
    assert [span.depth for span in spans([0] * 3, ["forward", "backward", "forward"])] == [0, 1, 1, 1]


def test_a_phase_ends_with_its_step() -> None:
    assert spans([0, 1], ["forward", "forward"]) == [
        Span("step 0", 0, 1, 0),
        Span("forward", 0, 1, 1),
        Span("step 1", 1, 2, 0),
        Span("forward", 1, 2, 1),
    ]


PHASES = st.sampled_from(["data", "forward", "recompute", "backward", "collective", "optimizer"])


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 2), PHASES), max_size=40))
def test_any_order_of_phases_nests_and_covers_every_event_once(events: list[tuple[int, str]]) -> None:
    found = spans([step for step, _ in events], [phase for _, phase in events])
    for depth in (0, 1):
        covered = [at for span in found if span.depth == depth for at in range(span.first, span.end)]
        assert covered == list(range(len(events)))
    outer: list[Span] = []
    for span in found:
        outer = [*outer[: span.depth], span]
        assert all(other.first <= span.first and span.end <= other.end for other in outer)
        for at in range(span.first, span.end):
            assert span.depth < 2 or events[at][1] == span.name
