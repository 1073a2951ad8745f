"""Check the arguments of a call and build the tool's dataclass; what does not fit is refused in our words."""

from __future__ import annotations

import dataclasses
from typing import Any

from opguard_core.plan.redact import redact_text
from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Role, Tool, roles_of
from opguard_harness.interface.schemas import model_of


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
        found = error.errors(include_url=False)
        said = "; ".join(_reading(item, names) for item in found[:5])
        lacking = [str(item["loc"][0]) for item in found if item["type"] == "missing"]
        stored = [name for name in lacking if roles_of(tool.arguments)[name] is Role.STORED]
        hint = {"hint": f"`list_runs` shows the ids that {stored[0]} can be."} if stored else {}
        raise InvalidArguments(f"{tool.name}: {said}.", **hint) from error
    values = {name: getattr(model, name) for name in names}
    for name, value in values.items():
        if any(isinstance(item, str) and "\0" in item for item in (value if isinstance(value, list) else [value])):
            raise InvalidArguments(f"{tool.name}: {name}: it has a NUL character, which no path and no command line can have.")
    return tool.arguments(**values)


def _reading(item: Any, names: list[str]) -> str:
    """One pydantic error in our words."""
    from difflib import get_close_matches

    name = ".".join(str(part) for part in item["loc"])[:80]
    if item["type"] == "extra_forbidden":
        close = get_close_matches(name, names, n=1)
        return f"{name!r} is not an argument" + (f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(names) or 'none'})")
    return f"{name}: {item['msg']}" + ("" if item["type"] == "missing" else f" (got {redact_text(str(item['input'])[:200])[:60]!r})")
