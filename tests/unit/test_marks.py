"""Named calls and values as the program sees them: nothing changes, whoever looks."""

import asyncio
import importlib
import traceback

import pytest

import opguard_core
from opguard_core import marks


class Listener:
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def enter(self, name, args, kwargs):
        self.told.append(("enter", name, args, kwargs))
        return name

    def leave(self, token, result):
        self.told.append(("leave", token, result))

    def raised(self, token, error):
        self.told.append(("raised", token, type(error).__name__))

    def probe(self, name, value):
        self.told.append(("probe", name, value))


@pytest.fixture
def listener(monkeypatch):
    monkeypatch.setattr(marks, "_observer", None)
    heard = Listener()
    marks.observe(heard)
    yield heard
    marks.observe(None)


def test_without_a_capture_a_decorated_function_is_itself(monkeypatch):
    monkeypatch.delenv(marks.ANNOUNCED, raising=False)

    def function():
        """Documented."""

    assert opguard_core.boundary("name")(function) is function
    value = object()
    assert opguard_core.probe("name", value) is value
    with opguard_core.boundary("name", value) as block:
        assert block.returns(value) is value


def test_a_capture_that_is_announced_will_see_what_is_decorated_before_it_begins(monkeypatch):
    monkeypatch.setenv(marks.ANNOUNCED, "/run")
    decorated = opguard_core.boundary("name")(lambda x: x + 1)
    assert decorated(1) == 2
    heard = Listener()
    marks.observe(heard)
    try:
        assert decorated(1) == 2
    finally:
        marks.observe(None)
    assert heard.told == [("enter", "name", (1,), {}), ("leave", "name", 2)]


def test_a_call_keeps_name_result_and_exception(listener):
    @opguard_core.boundary("div")
    def divide(a, b=1):
        """Divides."""
        return a / b

    assert (divide.__name__, divide.__doc__) == ("divide", "Divides.")
    assert divide(6, b=3) == 2
    with pytest.raises(ZeroDivisionError) as caught:
        divide(1, 0)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "return a / b"
    assert listener.told == [
        ("enter", "div", (6,), {"b": 3}),
        ("leave", "div", 2.0),
        ("enter", "div", (1, 0), {}),
        ("raised", "div", "ZeroDivisionError"),
    ]


def test_a_block_names_what_it_reads_and_gives(listener):
    with opguard_core.boundary("loss", 1, y=2) as loss:
        assert loss.returns(3) == 3
    with opguard_core.boundary("bare"):
        pass
    with pytest.raises(KeyError), opguard_core.boundary("fails"):
        raise KeyError
    assert listener.told == [
        ("enter", "loss", (1,), {"y": 2}),
        ("leave", "loss", 3),
        ("enter", "bare", (), {}),
        ("leave", "bare", ()),
        ("enter", "fails", (), {}),
        ("raised", "fails", "KeyError"),
    ]


def test_a_generator_stays_one(listener):
    @opguard_core.boundary("gen")
    def echo(first):
        got = yield first
        try:
            yield got * 2
        except ValueError:
            yield "thrown"
        return "end"

    def outer():
        return (yield from echo(1))

    running = outer()
    assert listener.told == []  # its body has not begun
    assert (next(running), running.send(5), running.throw(ValueError())) == (1, 10, "thrown")
    with pytest.raises(StopIteration) as stopped:
        next(running)
    assert stopped.value.value == "end"
    closed = echo(1)
    next(closed)
    closed.close()
    assert [one[0] for one in listener.told] == ["enter", "leave", "enter", "raised"]


def test_a_coroutine_stays_one(listener):
    @opguard_core.boundary("later")
    async def later(x):
        await asyncio.sleep(0)
        return x

    assert asyncio.run(later(4)) == 4
    assert listener.told == [("enter", "later", (4,), {}), ("leave", "later", 4)]


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "<x>", ".x", "x" * 121, 7, None])
def test_a_name_that_could_not_be_told_is_refused_whether_or_not_anybody_looks(name):
    with pytest.raises(ValueError, match="names no boundary"):
        opguard_core.boundary(name)


def test_what_cannot_be_decorated_is_refused():
    async def many():
        yield 1

    for thing in (many, int, "text"):
        with pytest.raises(TypeError, match="decorate a function"):
            opguard_core.boundary("name")(thing)
    with pytest.raises(TypeError, match="nothing else"):
        opguard_core.boundary("name", 1)(len)


def test_the_function_keeps_its_name_beside_the_package_of_that_name():
    package = importlib.import_module("opguard_core.probe")
    assert package.__name__ == "opguard_core.probe"
    assert opguard_core.probe is marks.probe
