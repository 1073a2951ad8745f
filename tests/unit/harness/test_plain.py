"""Answers are JSON for any reader: ASCII, finite, without types of ours."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from opguard_core.ids import Phase
from opguard_harness.answer.plain import dumps, plain


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Phase.FORWARD, "forward"),
        (Path("/a/b"), "/a/b"),
        (Pair((1, 2), {"k": None}), {"left": [1, 2], "right": {"k": None}}),
        ({3: True}, {"3": True}),
        ({"b", "a"}, ["a", "b"]),
    ],
    ids=["nan", "-inf", "word", "path", "dataclass", "integer key", "set"],
)
def test_values_become_plain(value, expected):
    assert json.loads(dumps(value)) == expected


def test_numpy_values_become_plain():
    numpy = pytest.importorskip("numpy")
    assert plain({"scalar": numpy.uint64(2**63), "array": numpy.arange(2)}) == {"scalar": 2**63, "array": [0, 1]}


def test_a_file_name_that_is_no_unicode_still_prints():
    text = dumps({"file": "b\udcff.py"})
    text.encode("ascii")
    assert json.loads(text) == {"file": "b\udcff.py"}


def test_a_value_without_a_plain_form_is_an_error():
    with pytest.raises(TypeError, match="object"):
        plain({"a": object()})
