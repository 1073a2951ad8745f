"""Nothing that an observed program can name reaches the terminal as a control sequence, or a report as Markdown of its own."""

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from opguard_harness.report.escape import markdown, terminal
from opguard_harness.report.short import short_answer
from tests.support.answers import answer, pivot, place

HOSTILE = "a\x1b[2J\rb\u202ec\x9b31m\udcffd\ne\u200b\u2028"


def test_control_and_format_characters_become_visible():
    shown = terminal(HOSTILE)
    assert shown == "a\\x1b[2J\\rb\\u202ec\\x9b31m\\udcffd\\ne\\u200b\\u2028"
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


MARKED = (
    "# x", "- x", "+ x", "1. x", "1) x", "> x", "    code", "===", "---", ":--", "```x", "~~~", "<img src=x onerror=alert(1)>", "<!-- x",
    "[a](javascript:alert(1))", "![a](http://x)", "[^1]", "`a`", "**b**", "__b__", "~~d~~", "a | b", "a\\", "\\", "&lt;b&gt;",
    "&#60;b>", "$$x$$",
    "a\n# b", "a\r- b", "a\u2028# b", "https://e.com", "www.e.com", "a@e.com", HOSTILE, "\t# x", "  # x", "a\x00b",
)  # fmt: skip


@pytest.mark.parametrize("text", MARKED, ids=ascii)
@pytest.mark.parametrize("around", ["{}", "- {}", "1. {}", "x {} y", "| a | {} | b |\n|---|---|---|\n| {} | b | c |", "**{}**"], ids=repr)
def test_what_is_escaped_for_markdown_renders_as_what_it_says(text, around):
    shown = markdown(text)
    assert "\n" not in shown
    rendered = render(around.replace("{}", shown))
    plain = render(around.replace("{}", "word"))
    assert re.findall(r"<[^>]*>", rendered) == re.findall(r"<[^>]*>", plain)


def test_plain_prose_stays_readable_in_markdown():
    assert markdown("The loss is 0.5 (of 7), not 1e-3: see train.py:7.") == "The loss is 0.5 (of 7), not 1e-3: see train.py:7."
    assert markdown("aten.mul.Tensor out.0") == "aten.mul.Tensor out.0"
    assert render(markdown("a_b <c> & d")) == "<p>a_b &lt;c&gt; &amp; d</p>\n"


def render(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.text(alphabet="\\`*_{}[]()<>#+-.!|~$&;:/@=\"' \t\n1a0xwps^%?,\u2028\u202e\u00e9", max_size=14))
def test_any_text_reads_in_markdown_as_it_reads_on_a_terminal(text):
    shown = markdown(text)
    rendered = render(f"x {shown} y")
    assert re.findall(r"<[^>]*>", rendered) == ["<p>", "</p>"]
    said = "x " + terminal(text).replace("\u2028", "\\u2028").strip(" ") + " y"
    assert html.unescape(re.sub(r"<[^>]*>", "", rendered)).split() == said.split()
