"""What is declared as the protocol lists it: flat, without titles in schemas, and no larger than a model needs."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

from mcp.types import Prompt as WirePrompt
from mcp.types import PromptArgument, Resource, ResourceTemplate, ToolAnnotations
from mcp.types import Tool as WireTool

from opguard_harness.config import ANSWER_LIMIT_CHARS
from opguard_harness.interface.declaration import Tool
from opguard_harness.interface.schemas import schema_of
from opguard_harness.prompts import Prompt
from opguard_harness.server.resources import Kind

_ALWAYS_LOADED = ("open_case", "compare", "get_job", "first_difference")  # the short path; clients find the others by searching
_LARGE = (
    "align",
    "compare_contracts",
    "get_evidence",
    "get_job",
    "launch_preflight",
    "list_differences",
    "search_source",
    "show_source",
    "tail_log",
)
_UNSAID = ("maxLength", "minLength", "maxItems", "minItems")
_EMPTY = tuple((key, value) for key in ("default", "minimum", "exclusiveMinimum") for value in ("", 0))  # False is 0, too
_OUTPUT: dict[str, Any] = {"type": "object", "required": ["summary"]}  # 22 times in the list, so no longer than it has to be


def wire_tool(tool: Tool) -> WireTool:
    """The entry of one tool. The whole schema of its result is in `opguard-harness tools --json`."""
    meta: dict[str, Any] = {}
    if tool.name in _ALWAYS_LOADED:
        meta["anthropic/alwaysLoad"] = True
    if tool.name in _LARGE:
        meta["anthropic/maxResultSizeChars"] = 2 * ANSWER_LIMIT_CHARS  # a client may count both forms of a result
    return WireTool(
        name=tool.name,
        description=tool.text,
        input_schema=input_schema(tool),
        output_schema=_OUTPUT,
        annotations=ToolAnnotations(
            title=tool.heading,
            read_only_hint=tool.read_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent,
            open_world_hint=tool.open_world,
        ),
        _meta=meta or None,
    )


def input_schema(tool: Tool) -> dict[str, Any]:
    """The schema of the arguments, less what a model does not need to call it well.

    Left out are bounds on lengths, empty defaults, that a number is not negative, and patterns that the text beside them has in
    words, or that are of cursors, which nobody makes up. All are checked all the same, and the error says what does not fit.
    """
    schema = schema_of(tool.arguments)
    defaults = {item.name: item.default_factory() for item in fields(tool.arguments) if item.default_factory is not MISSING}
    properties = {}
    for name, said in schema["properties"].items():
        unsaid = (*_UNSAID, "pattern") if name == "cursor" or _in_words(said.get("pattern", ""), said["description"]) else _UNSAID
        kept = {key: value for key, value in said.items() if key not in unsaid and (key, value) not in _EMPTY}
        properties[name] = {**kept, **({"default": defaults[name]} if defaults.get(name) else {})}
    return {**{key: value for key, value in schema.items() if key != "description"}, "properties": properties}


def _in_words(pattern: str, text: str) -> bool:
    """Whether a pattern is a list of words, all of which the text has, or the window that it calls A:B."""
    listed = re.fullmatch(r"\^\(([a-z |]+)\)\??\$", pattern)
    return "A:B" in text if listed is None else all(word in text for word in listed[1].split("|"))


def wire_prompt(prompt: Prompt) -> WirePrompt:
    """The entry of one text."""
    arguments = [PromptArgument(name=item.name, description=item.text, required=item.required) for item in prompt.arguments]
    return WirePrompt(name=prompt.name, title=prompt.title, description=prompt.description, arguments=arguments)


def wire_resource(uri: str, kind: Kind) -> Resource:
    """The entry of one resource that there is."""
    name = uri.removeprefix("opguard://")
    return Resource(
        uri=uri,
        name=name,
        title=f"{kind.title} {name.rpartition('/')[2]}" if kind.variable else kind.title,
        description=kind.text,
        mime_type=kind.mime,
    )


def wire_template(kind: Kind) -> ResourceTemplate:
    """The entry of one kind of resource; it names the tool that answers the same."""
    text = f"{kind.text} The tool `{kind.twin}` gives the same."
    return ResourceTemplate(uri_template=kind.template, name=kind.title, title=kind.title, description=text, mime_type=kind.mime)
