"""Whatever a text for agents names exists: tools, arguments, commands, words of an answer; in prompts, skill and instructions."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import opguard_core.errors
import opguard_harness.errors
from opguard_core.certify import reasons
from opguard_core.contract.spec import SEVERITIES
from opguard_core.ids import MODES, Origin
from opguard_harness.cli.app import app
from opguard_harness.prompts import prompts
from opguard_harness.registry import TOOLS
from opguard_harness.server.resources import KINDS

REPOSITORY = Path(__file__).resolve().parents[2]
TEXTS = [*sorted((REPOSITORY / "prompts").rglob("*.md")), REPOSITORY / "opguard_harness" / "server" / "instructions.md"]
ARGUMENTS = {tool.name: {item.name for item in dataclasses.fields(tool.arguments)} for tool in TOOLS}
STATES = {"queued", "running", "succeeded", "failed", "cancelled", "lost"}
EVIDENCE = {"ev:", "src:", "job:"}
LIMIT_CHARS = 4_000  # of a prompt: read whole, in front of everything else


def words_of_an_answer():
    """Names that an answer's schema has, at any depth."""
    schema = json.loads((REPOSITORY / "opguard_harness" / "answer" / "compare.schema.json").read_text("utf-8"))

    def names(node):
        if isinstance(node, dict):
            yield from node.get("properties", {})
            for item in node.values():
                yield from names(item)
        elif isinstance(node, list):
            for item in node:
                yield from names(item)

    return set(names(schema))


def choices():
    """Words that an argument may be, where it may be one of a few."""
    patterns = [item.metadata["limits"].get("pattern", "") for tool in TOOLS for item in dataclasses.fields(tool.arguments)]
    found = [re.fullmatch(r"\^\(([a-z |]+)\)\??\$", pattern) for pattern in patterns]
    return {word for match in found if match for word in match[1].split("|")}


def vocabulary():
    errors = {
        kind.slug for module in (opguard_core.errors, opguard_harness.errors) for kind in vars(module).values() if hasattr(kind, "slug")
    }
    results = {item.name for tool in TOOLS for item in dataclasses.fields(tool.result)}
    origins = {str(origin) for origin in Origin}
    verdicts = {"diverged", "identical", "inconclusive"}
    arguments = set().union(*ARGUMENTS.values())
    texts = {prompt.name for prompt in prompts()}
    return (
        set(ARGUMENTS) | arguments | results | words_of_an_answer() | origins | verdicts | set(MODES) | set(reasons.SLUGS) | errors
        | set(SEVERITIES) | STATES | EVIDENCE | texts | choices() | {kind.template for kind in KINDS} | {"opguard"}
    )  # fmt: skip


def blocks(text):
    """Lines of indented blocks, and all others; the indented rest of a list's item is no block."""
    inside, outside, before = [], [], ""
    for line in text.splitlines():
        block = line.startswith("    ") and (not before.strip() or before in inside)
        (inside if block else outside).append(line)
        before = line
    return inside, outside


def quoted(text):
    """What stands in backticks outside indented blocks."""
    return re.findall(r"`([^`\n]+)`", "\n".join(blocks(text)[1]))


def shell_lines(text):
    """Command lines of ours: quoted ones, and those of indented blocks without their comments."""
    indented = [line.split("  #")[0].strip() for line in blocks(text)[0]]
    return [line for line in [*indented, *quoted(text)] if line.startswith("opguard-harness")]


def known_example(word):
    """A list of words, as an argument is written."""
    return word.startswith("[") and isinstance(json.loads(word), list)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_every_quoted_word_is_one_of_ours(path):
    known = vocabulary()
    words = quoted(path.read_text("utf-8"))
    unknown = {word for word in words if word not in known and not word.startswith("opguard-harness") and not known_example(word)}
    assert words
    assert not unknown


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_tool_named_with_arguments_has_them(path):
    sentences = re.split(r"[.:;]\s", re.sub(r"\s+", " ", path.read_text("utf-8")))
    for sentence in sentences:
        for tool, rest in re.findall(r"`(\w+)` with (.*)", sentence):
            if tool in ARGUMENTS:
                named = {word for word in re.findall(r"`(\w+)`", rest) if word not in ARGUMENTS}
                assert named <= ARGUMENTS[tool], sentence


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_every_command_line_can_be_given(path):
    commands = get_command(app).commands
    for line in shell_lines(path.read_text("utf-8")):
        _, *words = shlex.split(line)
        if not words:
            continue
        assert words[0] in commands, line
        options = {option for parameter in commands[words[0]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
        if words[0] == "call" and words[1] != "NAME":
            given = json.loads(words[2])
            assert set(given) <= ARGUMENTS[words[1]], line
            assert required(words[1]) <= set(given), line
        if words[0] == "explain" and len(words) > 1:
            assert words[1] in {prompt.name for prompt in prompts()}, line


def required(name):
    fields = dataclasses.fields(next(tool for tool in TOOLS if tool.name == name).arguments)
    return {item.name for item in fields if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING}


def test_every_tool_is_taught_somewhere():
    taught = {word for path in TEXTS for word in quoted(path.read_text("utf-8"))}
    assert set(ARGUMENTS) <= taught


@pytest.mark.parametrize("prompt", prompts(), ids=lambda prompt: prompt.name)
def test_a_prompt_is_short_ascii_and_leads_from_title_to_text(prompt):
    assert len(prompt.body) <= LIMIT_CHARS
    assert prompt.body.isascii()
    assert prompt.body.startswith("# ")
    assert prompt.description.endswith(".")
    assert len(prompt.description) <= 120
    assert max(len(line) for line in prompt.body.splitlines()) <= 140
    for item in prompt.arguments:
        assert item.text.endswith(".")


def test_the_check_of_words_can_fail():
    assert "comparee" not in vocabulary()
    assert quoted("a `b c` d\n\n    `e`\n    `e`\n\n- x\n    `f`") == ["b c", "f"]
    assert shell_lines("x `opguard-harness tools`\n\n    opguard-harness call a '{}'   # why\n") == [
        "opguard-harness call a '{}'",
        "opguard-harness tools",
    ]
