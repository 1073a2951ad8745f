"""What a tool is: one declaration from which the shell, the tool list, the README table and the schemas are made.

Arguments and results are plain dataclasses, so that declaring a tool imports nothing. Their pydantic models are built when
a schema or a check is first asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from opguard_harness.errors import InvalidArguments

if TYPE_CHECKING:
    from pydantic import BaseModel

GROUPS = ("environment", "runs", "compare", "filters", "source")


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: Verb and noun, the key everywhere.
        group: One of ``GROUPS``.
        text: What it does and when to use it; the first sentence is the README row.
        arguments: Dataclass of its arguments; flat types with defaults, described through ``argument``.
        result: Dataclass of its result; has ``summary``, ``evidence``, ``next`` and ``truncated``.
        run: Carries it out.
        read_only: Changes nothing on disk.
        destructive: May change things outside our folders (a training is arbitrary code).
        idempotent: Asking twice has the effect of asking once.
        open_world: Runs code that may reach anything.
    """

    name: str
    group: str
    text: str
    arguments: type
    result: type
    run: Callable[[Any], Any]
    read_only: bool
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False

    @property
    def headline(self) -> str:
        """The first sentence of the text."""
        return self.text.split(". ")[0].rstrip(".") + "."

    def describe(self) -> dict[str, Any]:
        """The entry of ``tools --json``."""
        return {
            "name": self.name,
            "group": self.group,
            "text": self.text,
            "hints": {
                "read_only": self.read_only,
                "destructive": self.destructive,
                "idempotent": self.idempotent,
                "open_world": self.open_world,
            },
            "arguments": schema_of(self.arguments),
            "result": schema_of(self.result),
        }


@dataclass(frozen=True)
class Evidence:
    """A fact that a reader can look up: ``quote`` is what stands at ``uri``."""

    id: str
    uri: str
    quote: str


@dataclass(frozen=True)
class Next:
    """A call worth making now."""

    tool: str
    arguments: dict[str, Any]
    why: str


@dataclass(frozen=True)
class Truncated:
    """How much of a list was left out; ``cursor`` continues it."""

    shown: int
    total: int
    cursor: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every result has. ``summary`` stands alone: one or two sentences."""

    summary: str
    evidence: list[Evidence] = field(default_factory=list)
    next: list[Next] = field(default_factory=list)
    truncated: Truncated | None = None


def argument(text: str, default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """Describe one argument.

    Args:
        text: What it means.
        default: Value when it is left out; without one it is required.
        **limits: pydantic constraints such as ``ge``, ``le`` or ``pattern``.
    """
    metadata = {"text": text, "limits": limits}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@cache
def model_of(kind: type) -> type[BaseModel]:
    """The pydantic model of a dataclass; unknown arguments are refused rather than dropped."""
    from pydantic import ConfigDict, Field, create_model

    hints = get_type_hints(kind)
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        given: dict[str, Any] = {"description": item.metadata["text"], **item.metadata["limits"]} if "text" in item.metadata else {}
        if item.default is not dataclasses.MISSING:
            given["default"] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            given["default_factory"] = item.default_factory
        fields[item.name] = (hints[item.name], Field(**given))
    model: type[BaseModel] = create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return model


@cache
def schema_of(kind: type) -> dict[str, Any]:
    """JSON schema of a dataclass, without the titles that say nothing."""
    stripped: dict[str, Any] = _untitled(model_of(kind).model_json_schema())
    return stripped


def parse_arguments(tool: Tool, given: Any) -> Any:
    """Check arguments and build the tool's dataclass.

    Raises:
        InvalidArguments: They do not fit; the message names each argument and the closest known name.
    """
    from pydantic import ValidationError

    names = [item.name for item in dataclasses.fields(tool.arguments)]
    if not isinstance(given, dict):
        raise InvalidArguments(f"{tool.name} takes a JSON object of arguments, not {type(given).__name__}.")
    try:
        model = model_of(tool.arguments).model_validate(given, strict=True)
    except ValidationError as error:
        said = "; ".join(_reading(item, names) for item in error.errors(include_url=False)[:5])
        raise InvalidArguments(f"{tool.name}: {said}.") from error
    values = {name: getattr(model, name) for name in names}
    for name, value in values.items():
        if any(isinstance(item, str) and "\0" in item for item in (value if isinstance(value, list) else [value])):
            raise InvalidArguments(f"{tool.name}: {name}: it has a NUL character, which no path and no command line can have.")
    return tool.arguments(**values)


def _reading(item: Any, names: list[str]) -> str:
    """One pydantic error in our words."""
    from difflib import get_close_matches

    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        close = get_close_matches(name, names, n=1)
        return f"{name!r} is not an argument" + (f", did you mean {close[0]!r}?" if close else f" (known: {', '.join(names) or 'none'})")
    return f"{name}: {item['msg']}" + ("" if item["type"] == "missing" else f" (got {str(item['input'])[:60]!r})")


def _untitled(value: Any) -> Any:
    """Drop pydantic's generated titles; a property called ``title`` stays."""
    if isinstance(value, dict):
        return {key: _untitled(item) for key, item in value.items() if not (key == "title" and isinstance(item, str))}
    return [_untitled(item) for item in value] if isinstance(value, list) else value
