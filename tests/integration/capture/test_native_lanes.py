# ruff: noqa: E402  (torch may be missing)
"""Lanes of C++ are lanes of Python; what a thread carries follows it into backward."""

import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.engines import lanes, phases, progress
from opguard_core.engines.contexts import Situation
from tests.support.native import native_or_skip


@pytest.fixture(scope="module")
def compiled():
    return native_or_skip().module


@pytest.fixture(params=["python", "native"])
def made(request):
    return lanes if request.param == "python" else request.getfixturevalue("compiled")


class Mode:
    pushed = False

    def push(self):
        self.pushed = True


def test_a_thread_has_the_lane_it_was_given_and_numbers_come_at_first_event(made):
    of = made.Lanes()
    assert of.current() is None
    lane = of.enter("main")
    assert of.current() is lane and lane.index is None
    seen = []
    thread = threading.Thread(target=lambda: seen.extend([of.current(), of.enter("Thread:f"), of.number(of.current())]))
    thread.start()
    thread.join()
    assert seen[0] is None and seen[2] == 0 and of.number(lane) == 1
    assert [one.role for one in of.all] == ["Thread:f", "main"]
    of.leave()
    assert of.current() is None and made.Lanes().current() is None


def test_attributes_are_what_hooks_set(made):
    lane = made.Lane("main")
    assert (lane.path, lane.root_grad, lane.muted, lane.aside, lane.away, lane.last_node, lane.mode) == (
        "",
        False,
        False,
        False,
        False,
        0,
        None,
    )
    lane.path = "blocks.3.attn"
    lane.modules.append(lane)
    lane.create_graph.append(True)
    assert (lane.path, lane.modules, lane.create_graph[-1], bool(lane.create_graph)) == ("blocks.3.attn", [lane], True, True)
    lane.create_graph.pop()
    lane.modules.pop()
    assert not lane.create_graph
    lane.count_microbatch(2)
    lane.count_microbatch(2)
    assert (lane.microbatch(2), lane.microbatch(3), lane.microbatches, lane.counted_in) == (2, 0, 2, 2)
    lane.mode, lane.aside = Mode(), True
    lane.come_back()
    assert lane.mode.pushed and not lane.aside


def test_the_oldest_half_of_what_made_nodes_is_forgotten(made):
    lane = made.Lane("main")
    for node in range(lanes.NODE_MEMORY + 1):
        lane.link(node, node + 1, "aten::add")
    assert lane.forward_of.get(0) is None
    assert lane.forward_of.get(lanes.NODE_MEMORY) == (lanes.NODE_MEMORY + 1, "aten::add")
    assert len(lane.forward_of) == lanes.NODE_MEMORY // 2 + 1
    assert lane.forward_of.get(2**64 - 1) is None, "the number of every AccumulateGrad"


def test_a_lane_and_its_mode_do_not_keep_one_another(made):
    lane, mode = made.Lane("main"), Mode()
    lane.mode, mode.lane = mode, lane
    gone = weakref.ref(mode)
    del lane, mode
    gc.collect()
    assert gone() is None


def test_backward_carries_the_lane_of_the_thread_that_called_it(compiled):
    of = compiled.Lanes()
    lane = of.enter("main")
    compiled.carry_lane(lane)
    try:
        seen = []
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(lambda gradient: seen.append(compiled.carried_lane()))
        thread = threading.Thread(target=lambda: seen.append(compiled.carried_lane()))
        thread.start()
        thread.join()
        y.sum().backward()
        assert seen == [None, lane]
    finally:
        compiled.put_down_lane()
    assert compiled.carried_lane() is None


def test_a_profiler_that_began_before_ends_as_it_would(compiled):
    of = compiled.Lanes()
    lane = of.enter("main")
    with torch.autograd.profiler.profile():
        compiled.carry_lane(lane)
        torch.ones(2) + 1
    assert compiled.carried_lane() is lane
    compiled.put_down_lane()


def test_phases_agree(compiled):
    for situation in Situation:
        for bits in range(16):
            grad, task, root, graph = (bool(bits & 1 << bit) for bit in range(4))
            said = []
            for module, of in ((phases, lanes), (compiled, compiled)):
                lane = of.Lane("main")
                lane.root_grad = root
                if graph:
                    lane.create_graph.append(True)
                named = situation if module is phases else situation.value
                said.append(module.phase_of(named, lane, grad_enabled=grad, in_graph_task=task))
            assert said[0] == said[1], (situation, bits)


@pytest.mark.parametrize(("steps", "offset"), [(None, None), ((2, 4), None), ((2, 4), 3), (None, 0)])
def test_progress_agrees(compiled, steps, offset):
    both = [progress.Progress(steps, offset), compiled.Progress(steps, offset)]

    def told(one):
        return (
            one.window,
            one.recording,
            one.wants_state,
            one.start,
            one.completed,
            one.offset,
            one.offset_given,
            one.loaded,
            one.collectives,
        )

    def agree():
        assert told(both[0]) == told(both[1])

    agree()
    assert both[0].resumed_at(2) == both[1].resumed_at(2)
    for one in both:
        one.loaded |= True
        one.collectives += 1
    agree()
    for _ in range(4):
        for one in both:
            one.update_done()
        agree()
    assert both[0].resumed_at(2) == both[1].resumed_at(2)
