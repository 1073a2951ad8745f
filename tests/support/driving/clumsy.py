"""A clumsy agent: it misspells, mixes types up, asks in the wrong order, loses what it was told, and reads error texts.

As in `agent`, nothing of OpGuard is imported. How it gets on is in ``amended``: what an error says is all that it has.
"""

import json
import re
import shlex
from dataclasses import dataclass, field

from tests.support.driving.agent import Agent, Made

PATIENCE = 8


class Stuck(AssertionError):
    """An error said nothing that helps."""


@dataclass
class Slip:
    """One mistake and what it was answered with."""

    tool: str
    arguments: dict
    value: dict


@dataclass
class Clumsy:
    """Calls as it likes and mends each call by what came back.

    Attributes:
        agent: Fills a first call as an orderly agent does, and holds the tool list.
        slips: Calls that were refused.
    """

    agent: Agent
    slips: list[Slip] = field(default_factory=list)

    def ask(self, tool, arguments):
        """Call until the call is taken; returns what it answered."""
        for _ in range(PATIENCE):
            value = self.agent.call(tool, arguments)
            if "error" not in value or "state" in value:
                return value
            self.slips.append(Slip(tool, arguments, value))
            tool, arguments = self.amended(tool, arguments, value)
        raise Stuck(f"{tool} {arguments}: {value['summary']}")

    def twice(self, tool, arguments):
        """Ask the same twice; both answers must agree, clocks aside."""
        first, second = (self.ask(tool, arguments) for _ in range(2))
        assert _timeless(first) == _timeless(second), f"{tool} {arguments}: asked twice, answered differently"
        return second

    def amended(self, tool, arguments, value):
        """The call as the error says that it should have been; else the first call that it offers."""
        text, fix = value["error"]["text"], value["error"]["fix"]
        wanted = re.search(r"There is no tool '\w+'; did you mean '(\w+)'", text)
        if wanted:
            return wanted[1], arguments
        better = dict(arguments)
        for wrong, right in re.findall(r"'(\w+)' is not an argument \(did you mean '(\w+)'", text):
            better[right] = better.pop(wrong)
        for name, most in re.findall(r"(\w+): Input should be less than or equal to (\d+)", text):
            better[name] = int(most)
        for name, kind in re.findall(r"(\w+): Input should be a valid (\w+)", text):
            better[name] = _as(kind, better[name])
        strange = [name for name in re.findall(r"'(\w+)' is not an argument", text) if name in better]
        for name in re.findall(r"(\w+): Field required", text):
            if name not in better:
                better[name] = better.pop(strange.pop()) if strange else self.agent.filled(tool)[name]
        for name in re.findall(r"[Ll]eave (?:the )?`?(\w+)`? out", fix):
            better.pop(name, None)
        if better != arguments:
            return tool, better
        if value["next"]:
            return value["next"][0]["tool"], value["next"][0]["arguments"]
        raise Stuck(f"{tool} {arguments}: {text} {fix}")

    def begin(self):
        """The first call, with everything about it wrong at once."""
        tool = self.agent.start
        right = self.agent.filled(tool)
        wrong = {name + name[-1]: " ".join(value) if isinstance(value, list) else value for name, value in right.items()}
        return self.ask(tool[:-1], wrong)


def _as(kind, value):
    """A value in the type that an error asks for."""
    if kind == "list":
        return shlex.split(value) if isinstance(value, str) else list(value)
    if kind in ("integer", "number"):
        return int(value)
    if kind == "boolean":
        return str(value).lower() in ("true", "yes", "1")
    return str(value)


def _timeless(value):
    """The answer as text without what a clock tells; a job that has begun meanwhile is the same job."""
    kept = {name: item for name, item in value.items() if name not in ("elapsed_s", "summary")}
    return json.dumps(kept).replace("queued", "running")


def ids_in(value):
    """Everything in an answer that stands under the name of an id."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("id", "job", "comparison", "case") and isinstance(item, str):
                yield item
            yield from ids_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from ids_in(item)


__all__ = ["Clumsy", "Made", "Slip", "Stuck", "ids_in"]
