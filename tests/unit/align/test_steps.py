"""The reported step: the loop rule over stacks, and the markers only a new iteration has."""

import pytest

from opguard_core.align.steps import Steps, departure, loop_depth
from tests.support.script import Script


def chain(*frames):
    return tuple(((name,), at) for name, at in frames)


def test_departures_are_back_on_or_inside():
    update = chain(("main", 10), ("step", 5))
    assert departure(update, chain(("main", 4))) == (0, -1)
    assert departure(update, chain(("main", 12), ("log", 1))) == (0, 1)
    assert departure(update, chain(("main", 10), ("step", 3))) == (1, -1)
    assert departure(update, chain(("main", 10), ("other", 3))) == (1, 0)
    assert departure(update, chain(("main", 10), ("step", 5), ("hook", 2))) == (2, 0)
    assert departure(update, chain(("thread", 1))) == (0, 0)


def test_the_loop_is_the_outermost_frame_that_jumps_back_over_the_update():
    update = chain(("main", 10), ("step", 5))
    assert loop_depth(update, []) == 1
    around = (chain(("main", 20)), chain(("main", 4)))
    assert loop_depth(update, [around]) == 0
    elsewhere = (chain(("main", 40)), chain(("main", 30)))  # a loop after the update
    assert loop_depth(update, [elsewhere]) == 1
    other = (chain(("main", 12), ("evaluate", 9)), chain(("main", 12), ("evaluate", 2)))
    assert loop_depth(update, [other]) == 1
    assert loop_depth(chain(("main", 10)), [around]) == 0


class Loop:
    """`for batch in data: forward; backward; update(); ema; log` as stacks, step function or not."""

    def __init__(self, in_function: bool = False) -> None:
        self.script = Script()
        self.in_function = in_function
        self.wanted: dict[str, list[tuple[int, int]]] = {}

    def event(self, what, line, *, outside=False, operator="aten.sin.default", **facts):
        s = self.script
        self.wanted.setdefault(what, []).append((s.window, s.seq))
        if self.in_function and not outside:
            facts = {"calls": ("train_step()",), "function": "train_step", **facts}
        elif self.in_function:
            facts = {"function": "main", "file": "train.py", **facts}
        s.op(operator, [s.given((4,), s.seq)], (4,), at=f"{what}()", line=line, **facts)

    def steps(self):
        found = Steps(self.script.close().ranks[0]).of([key for keys in self.wanted.values() for key in keys])
        return {what: [found[key] for key in keys] for what, keys in self.wanted.items()}


def update(loop, line=30):
    facts = {"calls": ("train_step()",), "function": "train_step"} if loop.in_function else {}
    loop.script.marker("opguard.optimizer.end", at="opt.step()", line=line, phase="optimizer", **facts)
    loop.script.window += 1


def test_what_follows_the_update_in_the_loop_belongs_to_it():
    loop = Loop()
    for _ in range(3):
        loop.event("batch", 10)
        loop.event("forward", 20)
        update(loop)
        loop.event("ema", 40)
    loop.event("after", 90)
    assert loop.steps() == {"batch": [0, 1, 2], "forward": [0, 1, 2], "ema": [0, 1, 2], "after": [2]}


def test_a_step_function_called_in_a_loop():
    """The average of weights is updated by the caller: only its jump back shows that the caller loops."""
    loop = Loop(in_function=True)
    for _ in range(3):
        loop.event("forward", 20)
        update(loop)
        loop.event("ema", 5, outside=True)  # line 5 of main lies behind `train_step()` on its line 1
    assert loop.steps() == {"forward": [0, 1, 2], "ema": [0, 1, 2]}


def test_reloading_between_two_loops_belongs_to_the_next_step():
    loop = Loop(in_function=True)
    for _ in range(2):
        loop.event("forward", 20)
        update(loop)
    loop.event("reload", 50, outside=True, operator="aten.copy_.default")
    assert loop.steps()["reload"] == [2]


@pytest.mark.parametrize("word", ["opguard.forward.begin", "opguard.state.load", "opguard.optimizer.init"])
def test_markers_of_a_new_iteration_begin_a_step(word):
    loop = Loop()
    loop.event("forward", 20)
    update(loop)
    loop.event("ema", 40)
    loop.script.marker(word, at="elsewhere()", line=60)
    loop.event("later", 70)
    assert loop.steps() == {"forward": [0], "ema": [0], "later": [1]}


def test_a_fetch_begins_a_step_unless_it_is_for_an_evaluation():
    def run(evaluated):
        loop = Loop()
        loop.event("forward", 20)
        update(loop)
        loop.script.marker("opguard.data.fetch", at="next(loader)", line=50)
        loop.event("eval" if evaluated else "collate", 60, phase="eval" if evaluated else "data")
        loop.script.marker("opguard.forward.begin", at="net(x)", line=70)
        loop.event("next", 80)
        return loop.steps()

    assert run(True) == {"forward": [0], "eval": [0], "next": [1]}
    assert run(False) == {"forward": [0], "collate": [1], "next": [1]}


def test_without_stacks_or_markers_the_window_is_the_step():
    loop = Loop()
    s = loop.script
    for _ in range(2):
        loop.wanted.setdefault("op", []).append((s.window, s.seq))
        s.op("aten.sin.default", [s.given((4,), 1)], (4,), at=None)
        s.window += 1
    assert loop.steps() == {"op": [0, 1]}


def test_the_first_recorded_window_is_its_own_step():
    loop = Loop()
    loop.script.window = 7
    loop.event("forward", 20)
    assert loop.steps() == {"forward": [7]}


def test_a_tail_that_never_starts_again_belongs_to_the_last_step():
    loop = Loop()
    loop.event("forward", 20)
    update(loop)
    loop.event("save", 40)
    assert loop.steps()["save"] == [0]


def test_other_threads_take_the_step_of_the_time():
    loop = Loop()
    loop.event("forward", 20)
    update(loop)
    loop.event("early", 10, thread="Thread:work")
    loop.event("batch", 10)
    loop.event("late", 10, thread="Thread:work")
    assert loop.steps() == {"forward": [0], "early": [0], "batch": [1], "late": [1]}


def test_an_optimizer_without_a_marker_is_found_by_its_phase():
    loop = Loop()
    loop.event("forward", 20)
    loop.event("update", 30, phase="optimizer")
    loop.script.window += 1
    loop.event("ema", 40)
    loop.event("batch", 10)
    assert loop.steps() == {"forward": [0], "update": [0], "ema": [0], "batch": [1]}


def test_nothing_asked_reads_nothing():
    assert Steps(Script().close().ranks[0]).of([]) == {}
