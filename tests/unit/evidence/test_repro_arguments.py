"""Argument texts become literals of a closed set; whatever is outside it is refused, and nothing is ever evaluated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.evidence.repro.arguments import parse_arguments


def written(value):
    """What capture writes for a value; apart from the code under test."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return value.hex() if isinstance(value, float) else repr(value)


def read(value):
    """The value of a JSON form."""
    if isinstance(value, list):
        return [read(item) for item in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return float.fromhex(content) if kind == "float" else content
    return value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("dim=1;keepdim=False", {"dim": 1, "keepdim": False}),
        ("p=0x1.999999999999ap-4", {"p": {"float": "0x1.999999999999ap-4"}}),
        ("min=-inf;max=nan", {"min": {"float": "-inf"}, "max": {"float": "nan"}}),
        ("size=[2,-1,[]]", {"size": [2, -1, []]}),
        (
            "dtype=bfloat16;memory_format=channels_last;layout=strided",
            {"dtype": {"dtype": "bfloat16"}, "memory_format": {"memory_format": "channels_last"}, "layout": {"layout": "strided"}},
        ),
        ("mode='a;b=\\'c\\\\';other=None", {"mode": {"text": "a;b='c\\"}, "other": None}),
        ("value=complex(0x1.0000000000000p+0,-0x0.0p+0)", {"value": {"complex": ["0x1.0000000000000p+0", "-0x0.0p+0"]}}),
    ],
)
def test_what_capture_writes_is_read(text, found):
    assert parse_arguments(text) == found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=5))
def test_values_come_back(values):
    text = ";".join(f"a{index}={written(value)}" for index, value in enumerate(values))
    found = parse_arguments(text)
    assert [read(found[f"a{index}"]) for index in range(len(values))] == values
    json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        "x=__import__('os').system('true')",
        "x=ProcessGroup(size=2)",
        "x=str[400]",
        "x=dtype#77",
        "x=Tensor",
        "x=Reduction.MEAN",
        "x={1:2}",
        "x=1;",
        "x=1;;y=2",
        "x=1 ;y=2",
        "x=1+1",
        "x=[1",
        "x=[1;2]",
        "x='open",
        "x='\\N{BULLET}'",
        "x='\\U00110000'",
        "x=0x1",
        "x=01",
        "x=1e5",
        "x=lambda: 0",
        "=1",
        "x",
        "x.y=1",
        "x=1;x=2",
        "x=" + "[" * 50 + "]" * 50,
        "x=" + "9" * 40,
        "x=float.hex",
        "x=\n1",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError):
        parse_arguments(text)


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    try:
        json.dumps(parse_arguments(f"x={text}"))
    except ValueError:
        return
