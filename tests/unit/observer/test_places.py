"""Claims: the native look-up of a stack gives what `engines.places.Places.of` gives, with and without the interpreter lock, on any
thread; Python is entered once for each stack; a thread without Python frames has none, in both engines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # the first of these builds the parts

ROOT = Path(__file__).resolve().parents[3]


class Sink:
    """Keeps the rows of frames and stacks."""

    def __init__(self):
        self.frames, self.stacks = [], []

    def frame(self, row):
        self.frames.append(row)

    def stack(self, number, frames):
        self.stacks.append(tuple(frames))

    def source(self, digest, text):
        pass


class Looked:
    """Both ways to look a stack up, over one table of rows."""

    def __init__(self, parts, root=ROOT):
        from opguard_core.engines.places import Places
        from opguard_core.engines.shims import own

        self.sink = Sink()
        self.python = Places(self.sink, root)
        self.native = parts.Places(self.python)

        def both(released=True):
            stack = self.python.of(sys._getframe(1))
            return self.native.here(released), (stack.stack, stack.user_frame, stack.library_frame, stack.situation.value)

        def native_only(released=True):
            return self.native.here(released)

        # Frames of ours are part of the key and of no row: what calls here stands for the operator.
        self.both, self.native_only = own(both), own(native_only)


@pytest.fixture
def looked(parts):
    return Looked(parts)


# Ways to be called. Each goes on with the rest of the path, two of them from more than one place.


def plain(path, leaf):
    return go(path, leaf)


def by_either_line(path, leaf):
    if len(path) % 2:
        return go(path, leaf)
    return go(path, leaf)


def through_a_generator(path, leaf):
    def steps():
        yield None
        yield go(path, leaf)

    return list(steps())[-1]


def through_yield_from(path, leaf):
    def inner():
        yield go(path, leaf)

    def outer():
        yield from inner()

    return next(outer())


def through_a_builtin(path, leaf):
    return max(map(lambda _: go(path, leaf), [0]))  # noqa: C417 - the call from C is the point


def through_a_comprehension(path, leaf):
    return [go(path, leaf) for _ in range(1)][0]  # noqa: RUF015 - a generator is another way


def through_a_partial(path, leaf):
    return functools.partial(go, path)(leaf)


def through_a_context(path, leaf):
    @contextlib.contextmanager
    def entered():
        yield go(path, leaf)

    with entered() as found:
        return found


def through_a_coroutine(path, leaf):
    async def awaited():
        return go(path, leaf)

    async def main():
        await asyncio.sleep(0)
        return await awaited()

    return asyncio.run(main())


def through_a_property(path, leaf):
    class Holder:
        @property
        def found(self):
            return go(path, leaf)

    return Holder().found


def through_an_except_clause(path, leaf):
    try:
        raise KeyError(path)
    except KeyError:
        return go(path, leaf)
    finally:
        pass


def through_new_code(path, leaf):
    space = {"go": go, "path": path, "leaf": leaf}
    exec("found = go(path, leaf)", space)  # a code object that may die, and another take its address
    return space["found"]


def through_a_class_body(path, leaf):
    class Body:
        found = go(path, leaf)

    return Body.found


WAYS = {
    way.__name__: way
    for way in (
        plain,
        by_either_line,
        through_a_generator,
        through_yield_from,
        through_a_builtin,
        through_a_comprehension,
        through_a_partial,
        through_a_context,
        through_a_property,
        through_an_except_clause,
        through_new_code,
        through_a_class_body,
    )
}


def go(path, leaf):
    if not path:
        return leaf()
    return WAYS[path[0]](path[1:], leaf)


paths = st.lists(st.sampled_from(sorted(WAYS)), max_size=12)


@given(st.lists(paths, min_size=1, max_size=5), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_structure_of_calls_has_the_place_that_python_gives_it(parts, calls, released):
    looked = Looked(parts)
    for path in calls + calls:
        native, python = go(path, lambda: looked.both(released))
        assert native == python


def test_a_coroutine_has_the_place_that_python_gives_it(looked):
    for _ in range(2):
        native, python = through_a_coroutine(["plain"], looked.both)
        assert native == python


def test_python_is_entered_once_for_each_stack(looked):
    if not looked.native.reads_frames:
        pytest.skip(looked.native.why)
    for _ in range(3):
        go(["plain", "through_a_generator"], looked.native_only)
    assert looked.native.num_entered == 1
    for _ in range(3):
        go(["plain", "plain"], looked.native_only)
    assert looked.native.num_entered == 2


def test_two_calls_in_one_line_are_two_places(looked):
    one, other = looked.native_only(), looked.native_only()
    assert one != other
    texts = [looked.sink.frames[found[1]].text for found in (one, other)]
    assert texts == ["looked.native_only()"] * 2
    assert looked.sink.frames[one[1]].column < looked.sink.frames[other[1]].column


def test_code_that_died_does_not_lend_its_place_to_another(looked):
    found = set()
    for at in range(200):
        space = {"look": looked.native_only}
        exec(f"{'pass;' * at}found = look()", space)
        found.add(space["found"])
    assert len(found) == 200


def test_threads_have_places_of_their_own(looked):
    wrong = []

    def work(way):
        for _ in range(50):
            native, python = go([way, "plain"], looked.both)
            if native != python:
                wrong.append((native, python))

    threads = [threading.Thread(target=work, args=(way,)) for way in list(WAYS)[:6]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_that_python_has_never_been_on_has_no_place(looked, parts):
    assert parts.here_on_a_bare_thread(looked.native) == -1
    assert looked.native.num_entered == 0


def test_a_trace_without_places_has_none_natively_either(parts):
    from opguard_core.engines.places import NoPlaces

    native = parts.Places(NoPlaces())
    assert native.here(True) == (None, None, None, "none")
    assert native.num_entered == 0


def test_what_python_raises_becomes_an_error_of_the_look_up(parts):
    class Broken:
        def _intern(self):
            raise NotImplementedError

        def of(self, frame):
            raise ValueError("no such frame")

    with pytest.raises(RuntimeError, match="no such frame"):
        parts.Places(Broken()).here(True)


def test_the_situation_of_torchs_own_frames_comes_through(looked):
    import torch

    class Looking(torch.nn.Module):
        def forward(self, x):
            return looked.both()

    native, python = Looking()(None)
    assert native == python
    assert native[3] == "module"


def test_an_operator_on_a_thread_of_autograds_own_is_placed_where_backward_was_called(monkeypatch):
    """Deep reentrant backward calls run on threads that no Python code has started, as all backward on a device does."""
    import torch

    from opguard_core.engines.places import Stack
    from tests.support.capturing import capturing

    alone, called_from = [], Stack.called_from
    monkeypatch.setattr(Stack, "called_from", lambda stack, place: alone.append(stack.stack) or called_from(stack, place))

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            if ctx.depth:
                with torch.enable_grad():
                    y = torch.ones(3, requires_grad=True)
                    z = (Deep.apply(y, ctx.depth - 1) * 3).sum()
                z.backward()
            return gradient, None

    def train():
        x = torch.ones(3, requires_grad=True)
        Deep.apply(x, 70).sum().backward()  # torch hands over to another thread 60 deep
        return x.grad

    with capturing() as captured:
        observed = train()
    assert torch.equal(observed, train())
    assert None in alone, "no operator ran on such a thread: the program no longer shows it"
    backward = [row for row in captured.events if row.phase == "backward"]
    assert backward
    assert all(row.user_frame is not None for row in backward)
    assert captured.gaps == []
