"""Golden investigations: calls and what they answered, with everything that changes from run to run under a name.

A file has one JSON object a line: {"name", "arguments", "failed", "result"}. Names such as ``<job-1>`` stand for what the calls
before have answered, so a file can be replayed over any transport; the names are given in the order of first appearance.
"""

import json
import re

_SHAPES = (
    ("job", re.compile(r"\b(?:compare|align|confirm|preflight|run|guarded)-[0-9a-f]{12}(?:-\d+)?\b")),
    ("case", re.compile(r"\bcase-[0-9a-f]{12}\b")),
    ("finding", re.compile(r"\bfinding-[0-9a-f]{6,}\b")),
    ("filter", re.compile(r"\bfilter-[0-9a-f]{6,}\b")),
    ("trace", re.compile(r"(?<=ev:)[0-9a-f]{12}\b")),
    ("digest", re.compile(r"\b[0-9a-f]{16,64}\b")),
    ("time", re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")),
)
_NAMED = re.compile(r"<[a-z]+(?:-\d+)?>")
_SECONDS = re.compile(r"\b\d+(?:\.\d+)? s\b")
_CLOCKS = frozenset(("elapsed_s", "seconds", "created"))


class Names:
    """What stands for what, in one replay."""

    def __init__(self, places):
        """``places``: names of folders, and the folders."""
        self._of = {f"<{name}>": str(folder) for name, folder in places.items()}
        self._counts = dict.fromkeys((kind for kind, _ in _SHAPES), 0)

    def hide(self, value, key=""):
        """The value with names in place of what changes."""
        if isinstance(value, dict):
            return {name: self.hide(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if key in _CLOCKS:
            return f"<{key}>"
        return self._hidden(value) if isinstance(value, str) else value

    def _hidden(self, text):
        for name, found in sorted(self._of.items(), key=lambda item: -len(item[1])):
            text = text.replace(found, name)
        for kind, shape in _SHAPES:
            text = shape.sub(lambda match, kind=kind: "<time>" if kind == "time" else self._named(kind, match[0]), text)
        return _SECONDS.sub("<seconds>", text)

    def _named(self, kind, found):
        self._counts[kind] += 1
        name = f"<{kind}-{self._counts[kind]}>"
        self._of[name] = found
        return name

    def show(self, value):
        """The value with what stands for names put in."""
        return json.loads(_NAMED.sub(lambda match: self._of.get(match[0], match[0]), json.dumps(value)))


def replay(transport, lines, places):
    """Make the calls of a file; returns the lines as they are now."""
    names = Names(places)
    told = []
    for line in lines:
        reply = transport.call(line["name"], names.show(line["arguments"]))
        told.append({"name": line["name"], "arguments": line["arguments"], "failed": reply.failed, "result": names.hide(reply.value)})
    return told


def read(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
