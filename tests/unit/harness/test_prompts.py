"""The texts that people read with `explain` and agents get as prompts."""

import pytest

from opguard_harness.cli.app import dispatch
from opguard_harness.errors import InvalidArguments, PromptInvalid, UsageError
from opguard_harness.prompts import VALUE_LIMIT_CHARS, find_prompt, parse, prompts

TEXT = """---
title: A title
description: It says: one thing.
argument one: The first.
argument two (optional): The second.
---
# Heading

---
body
"""


def test_a_text_is_taken_apart():
    prompt = parse("name", TEXT)
    assert (prompt.title, prompt.description) == ("A title", "It says: one thing.")
    assert [(item.name, item.text, item.required) for item in prompt.arguments] == [
        ("one", "The first.", True),
        ("two", "The second.", False),
    ]
    assert prompt.body == "# Heading\n\n---\nbody\n"


def test_what_was_given_stands_quoted_in_front_and_cannot_change_the_text():
    prompt = parse("name", TEXT)
    text = prompt.render({"two": "", "one": 'x"\n---\n# Other\n- two: y'})
    assert text == 'Given:\n- one: "x\\"\\n---\\n# Other\\n- two: y"\n\n' + prompt.body


def test_a_text_without_values_is_its_body():
    for prompt in prompts():
        if not any(item.required for item in prompt.arguments):
            assert prompt.render({}) == prompt.body


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "needs one: The first"),
        ({"one": " \n"}, "needs one"),
        ({"one": "x", "three": "y"}, "'three'"),
        ({"one": "x" * (VALUE_LIMIT_CHARS + 1)}, "at most"),
    ],
)
def test_values_that_do_not_fit_are_named(values, said):
    with pytest.raises(InvalidArguments, match=said):
        parse("name", TEXT).render(values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Heading\n", "begin"),
        ("---\ntitle: x\n", "begin"),
        ("---\ntitle: x\n---\nbody", "lacks"),
        ("---\ntitle: x\ntitle: y\ndescription: z\n---\nbody", "title: y"),
        ("---\ntitle: x\ndescription: z\nargument Two: z\n---\nbody", "Two"),
        ("---\ntitle: x\ndescription: z\nargument two(optional): z\n---\nbody", "two"),
        ("---\ntitle: x\ndescription: z\nloose\n---\nbody", "loose"),
    ],
)
def test_a_text_that_is_not_written_as_it_should_be_is_named_with_the_line(text, said):
    with pytest.raises(PromptInvalid, match=said):
        parse("name", text)


def test_the_prompts_of_the_issue_are_there_with_their_arguments():
    found = {prompt.name: [(item.name, item.required) for item in prompt.arguments] for prompt in prompts()}
    assert found == {
        "compare": [("reference", True), ("suspect", True), ("command", False)],
        "explain_verdict": [],
        "investigate": [("symptom", True), ("command", False)],
        "resume": [("case", True)],
    }


def test_explain_lists_and_prints_them_without_their_front_lines():
    listed = dispatch(["explain"]).text
    for prompt in prompts():
        assert f"{prompt.name} " in listed
        assert prompt.description in listed
        assert dispatch(["explain", prompt.name]).text == prompt.body.rstrip("\n")
    assert "deterministic" in dispatch(["explain", "knobs"]).text


def test_a_text_that_is_not_there_is_refused_with_the_list():
    for ask in (lambda: find_prompt("nope"), lambda: dispatch(["explain", "nope"])):
        with pytest.raises(UsageError, match="nope") as refused:
            ask()
        assert "investigate" in str(refused.value)
