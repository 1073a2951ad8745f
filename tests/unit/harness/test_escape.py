"""Nothing that an observed program can name reaches the terminal as a control sequence."""

import pytest

from opguard_harness.report.escape import terminal
from opguard_harness.report.short import short_answer
from tests.support.answers import answer, pivot, place

HOSTILE = "a\x1b[2J\rb\u202ec\x9b31m\udcffd\ne\u200b"


def test_control_and_format_characters_become_visible():
    shown = terminal(HOSTILE)
    assert shown == "a\\x1b[2J\\rb\\u202ec\\x9b31m\\udcffd\\ne\\u200b"
    shown.encode("utf-8")


def test_plain_text_stays_as_it_is():
    assert terminal("f(x) * \u00e9 \u6f22") == "f(x) * \u00e9 \u6f22"


@pytest.mark.parametrize("verdict", ["diverged", "identical", "inconclusive"])
def test_the_short_answer_is_one_escaped_line_per_fact(verdict):
    value = answer(verdict, isolated=[pivot(suspect=place(file=HOSTILE, text=HOSTILE))])
    if verdict == "diverged":
        value["pivot"] = pivot(reference=place(file=HOSTILE, text=HOSTILE), operator=HOSTILE, slot=HOSTILE)
    if verdict == "inconclusive":
        value["reasons"] = [{"slug": HOSTILE, "text": HOSTILE, "fix": HOSTILE}] * 2
    lines = short_answer(value)
    assert 4 <= len(lines) <= 6
    for line in lines:
        assert line.isprintable(), line
