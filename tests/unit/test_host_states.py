# ruff: noqa: E402  (torch may be missing)
"""States of python's and numpy's generators: the digest of all their numbers, whatever was kept of earlier ones."""

import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from random import Random  # noqa: TID251  a generator of our own

from opguard_core.engines import randomness
from opguard_core.fingerprint.cpu import fingerprint_bytes


def plainly(numbers, gauss):
    text = ",".join(map(str, numbers)) + ";" + ("None" if gauss is None else float(gauss).hex())
    return fingerprint_bytes(text.encode())


@pytest.fixture
def generators(monkeypatch):
    """A generator in the place of each of the two modules, and nothing kept of earlier states."""

    class Python(Random):
        pass

    python, numpy = Python(1), np.random.RandomState(2)
    monkeypatch.setitem(sys.modules, "random", python)
    monkeypatch.setitem(sys.modules, "numpy.random", numpy)
    monkeypatch.setattr(randomness, "_host_digests", {})
    randomness._text_of.cache_clear()
    return python, numpy


def assert_whole(python, numpy):
    version, internal, gauss = python.getstate()
    name, keys, position, has_gauss, cached = numpy.get_state()
    expected = {
        "python": plainly((version, *internal), gauss),
        "numpy": plainly((len(name), position, has_gauss, *keys.tolist()), cached),
    }
    assert randomness.host_states() == expected
    return expected


def test_each_draw_shows_and_the_digest_is_that_of_all_numbers(generators):
    python, numpy = generators
    draws = (lambda: None, python.random, numpy.random_sample, lambda: python.gauss(0, 1), numpy.standard_normal)
    before = assert_whole(*generators)
    for step in range(900):
        draws[step % len(draws)]()
        after = assert_whole(*generators)
        moved = {"python": (1, 3), "numpy": (2, 4)}
        assert {name for name in after if after[name] != before[name]} == {name for name, steps in moved.items() if step % 5 in steps}
        before = after


def test_the_words_are_written_out_once_for_many_draws(generators):
    python, numpy = generators
    for _ in range(50):
        python.random(), numpy.random_sample()
        randomness.host_states()
    assert randomness._text_of.cache_info().misses <= 4


def test_a_seed_shows(generators):
    first = assert_whole(*generators)
    generators[0].seed(5), generators[1].seed(5)
    second = assert_whole(*generators)
    assert first["python"] != second["python"] and first["numpy"] != second["numpy"]
