"""An agent by rule. It knows what a model knows: the instructions, the list of tools, and what calls answer.

Nothing of OpGuard is imported here, and no tool, argument or id is known by name: the first tool is the one that the instructions
say to start with, arguments are filled by what their descriptions say, ids are found in results, calls come from `next`.
"""

import json
import re
from dataclasses import dataclass, field

CALLS, CHARACTERS = 8, 16_000
_SMALL_WORDS = frozenset("a an the of or and is in to it its by that not for what id side be may".split())


@dataclass(frozen=True)
class Fact:
    """Something that a person said, in words and as a value."""

    words: str
    value: object


@dataclass
class Made:
    """One call that was made."""

    tool: str
    arguments: dict
    size: int
    failed: bool
    value: dict


@dataclass
class Report:
    """What an agent says in the end."""

    verdict: str = ""
    step: int | None = None
    places: dict[str, dict] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)


class Agent:
    """Follows `next` from one first call to a verdict, reads the source, and looks up what it is going to cite."""

    def __init__(self, transport, facts, start="", *, reports=False):
        """``reports``: also take the steps that write something of ours down; else only those that read, once there is a verdict."""
        self._call_tool = transport.call
        self.tools = {tool["name"]: tool for tool in transport.tools()}
        self.instructions = transport.instructions
        self.facts = list(facts)
        self.start = start or self.first_tool()
        self.made: list[Made] = []
        self._reports = reports

    @property
    def characters(self):
        return sum(one.size for one in self.made)

    def first_tool(self):
        """The tool that the instructions say to start with."""
        for sentence in re.split(r"(?<=[.!?])\s+", self.instructions):
            if re.search(r"\b(start|first|begin)\b", sentence, re.IGNORECASE):
                named = [name for name in re.findall(r"`(\w+)`", sentence) if name in self.tools]
                if named:
                    return named[0]
        raise AssertionError("the instructions do not say what to start with")

    def filled(self, name):
        """Arguments of a first call: each fact goes where the description fits best."""
        schema = self.tools[name]["inputSchema"]
        arguments = {}
        for fact in self.facts:
            scored = [
                (_fit(fact, argument, what), argument) for argument, what in schema["properties"].items() if argument not in arguments
            ]
            best, argument = max(scored, default=(0, ""))
            if best >= 2:
                arguments[argument] = fact.value
        missing = [argument for argument in schema.get("required", []) if argument not in arguments]
        assert not missing, f"nothing that was said fits {missing} of {name}"
        return arguments

    def call(self, name, arguments):
        reply = self._call_tool(name, arguments)
        self.made.append(Made(name, arguments, reply.size, reply.failed, reply.value))
        return reply.value

    def investigate(self, calls=CALLS):
        """Call until there is a verdict and its evidence is looked up, or the calls are used up."""
        report = Report()
        value = self.call(self.start, self.filled(self.start))
        while len(self.made) < calls - 1:
            _read_verdict(value, report)
            step = self._step()
            if step is None:
                break
            value = self.call(*step)
        for one in self._to_cite(report)[: calls - len(self.made)]:
            if not self.call(*self._looking_up(one)).get("error"):
                report.evidence.append(one)
        return report

    def _step(self):
        """The next call that the newest answer offers; who reports goes back to older ones when that has none.

        What runs a program is taken only while there is no verdict.
        """
        known = any(_verdict(one.value) for one in self.made)
        for answer in reversed(self.made if self._reports else self.made[-1:]):
            for offered in answer.value["next"]:
                hints = self.tools[offered["tool"]]["annotations"]
                if known and (hints["destructiveHint"] if self._reports else not hints["readOnlyHint"]):
                    continue
                repeats = answer is self.made[-1] and (offered["tool"], offered["arguments"]) == (answer.tool, answer.arguments)
                if repeats or not self._was_made(offered):
                    return offered["tool"], offered["arguments"]
        return None

    def _was_made(self, offered):
        return any((one.tool, one.arguments) == (offered["tool"], offered["arguments"]) for one in self.made)

    def _to_cite(self, report):
        """The ids of the verdict's evidence, the suspect's first."""
        told = next((one.value for one in reversed(self.made) if _places(one.value)), {})
        entries = sorted(told.get("evidence", []), key=lambda entry: "suspect" not in entry["quote"])
        return list(dict.fromkeys(entry["id"] for entry in entries))

    def _looking_up(self, one):
        """The call that looks an id up: the reading tool whose name says that it is about evidence."""
        for name, tool in self.tools.items():
            required = tool["inputSchema"].get("required", [])
            if "evidence" in name and tool["annotations"]["readOnlyHint"] and len(required) == 1:
                return name, {required[0]: one}
        raise AssertionError("no tool looks evidence up")


def _fit(fact, argument, what):
    """How well an argument fits a fact: words they share, names counted more; 0 if the type does not fit."""
    if what["type"] != {str: "string", list: "array", int: "integer"}[type(fact.value)]:
        return 0
    said = _words(fact.words)
    name, text = _words(argument), _words(what["description"])
    return 3 * len(said & name) - len(name - said) + len(said & text) / (1 + len(text - said) / 8)


def _words(text):
    return {word.rstrip("s") for word in re.findall(r"[a-z]+", text.lower())} - _SMALL_WORDS


def _verdict(value):
    """The verdict that a result tells, at the top or below."""
    return value.get("verdict") or (value.get("result") or {}).get("verdict") or ""


def _places(value, name=""):
    """Each place (file and line) that stands under the name of a side, the outermost ones only."""
    found = {}
    if isinstance(value, dict):
        if name in ("reference", "suspect") and "file" in value and "line" in value:
            return {name: value}
        for key, item in value.items():
            for side, place in _places(item, key).items():
                found.setdefault(side, place)
    return found


def _read_verdict(value, report):
    """Take verdict, step and places out of a result."""
    report.verdict = report.verdict or _verdict(value)
    if not report.places and _places(value):
        report.places = _places(value)
        report.step = next((item["step"] for item in value.values() if isinstance(item, dict) and "step" in item), None)


def transcript(agent):
    """One line for each call: what it was and how many characters came back."""
    return "\n".join(f"{one.size:>6} {one.tool} {json.dumps(one.arguments)[:120]}" for one in agent.made)
