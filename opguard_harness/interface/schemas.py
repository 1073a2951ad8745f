"""The pydantic models and JSON schemas of declared arguments and results, built when they are first asked for."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from opguard_harness.interface.declaration import Tool

if TYPE_CHECKING:
    from pydantic import BaseModel


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


def describe(tool: Tool) -> dict[str, Any]:
    """The entry of ``tools --json``: everything that is declared."""
    return {
        "name": tool.name,
        "group": tool.group,
        "kind": tool.kind.value,
        "text": tool.text,
        "hints": {
            "read_only": tool.read_only,
            "destructive": tool.destructive,
            "idempotent": tool.idempotent,
            "open_world": tool.open_world,
        },
        "arguments": schema_of(tool.arguments),
        "result": schema_of(tool.result),
    }


def _untitled(value: Any) -> Any:
    """Drop pydantic's generated titles; a property called ``title`` stays."""
    if isinstance(value, dict):
        return {key: _untitled(item) for key, item in value.items() if not (key == "title" and isinstance(item, str))}
    return [_untitled(item) for item in value] if isinstance(value, list) else value
