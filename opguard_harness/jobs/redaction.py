"""The arguments of a job as they may lie on a disk: no values of variables, no secrets of command lines."""

from __future__ import annotations

import dataclasses
from typing import Any

from opguard_core.plan.redact import redact_argv, redact_text
from opguard_harness.interface.declaration import Role, Tool, roles_of


def redacted(tool: Tool, arguments: Any) -> dict[str, Any]:
    """Arguments without what is secret or may be.

    Args:
        tool: The tool.
        arguments: Its arguments, checked.
    """
    roles = roles_of(tool.arguments)
    return {name: _shown(value, roles[name]) for name, value in dataclasses.asdict(arguments).items()}


def _shown(value: Any, role: Role) -> Any:
    if role is Role.VARIABLES:
        return [pair.partition("=")[0] for pair in value]
    if isinstance(value, list):
        return redact_argv([str(word) for word in value])
    return redact_text(value) if isinstance(value, str) else value
