"""Ids of jobs, made from what was asked for: asking twice is the same job.

Two digests: the *request* is tool, arguments and token; the id has the sources in it as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from opguard_harness.answer.plain import dumps
from opguard_harness.compare.checkout import commit_id
from opguard_harness.interface.declaration import Role, Tool, roles_of
from opguard_harness.jobs.sources import Sources, digest_of

_SHORT = {"launch_preflight": "preflight", "run_guarded": "run", "confirm_difference": "confirm"}
_APART = ("case", "token")  # where a job is noted does not make it another one; the token is told apart by itself
_HASH_HEX = 12


def short_name(tool: str) -> str:
    """What ids of a tool's jobs begin with."""
    return _SHORT.get(tool, tool.replace("_", "-"))


def settled(tool: Tool, arguments: Any) -> Any:
    """Arguments with each commit by its whole id: what a name such as ``HEAD`` means may be another one tomorrow.

    Raises:
        CommitNotFound: There is none of that name.
    """
    names = [name for name, role in roles_of(tool.arguments).items() if role is Role.COMMIT and getattr(arguments, name)]
    changed = {}
    for name in names:
        side = Path(getattr(arguments, name.removesuffix("_commit")))
        changed[name] = commit_id(side.parent if side.is_file() else side, getattr(arguments, name))
    return dataclasses.replace(arguments, **changed)


def request_of(tool: Tool, arguments: Any) -> str:
    """Digest of tool, arguments and token.

    Args:
        tool: A tool of kind ``JOB``.
        arguments: Its arguments, checked and settled, with paths made absolute.
    """
    values = dataclasses.asdict(arguments)
    inputs = {name: value for name, value in values.items() if name not in _APART}
    return hashlib.sha256(dumps([tool.name, sorted(inputs.items()), values.get("token", "")]).encode("ascii")).hexdigest()


def sources_of(tool: Tool, arguments: Any) -> Sources:
    """Digests of the files that the arguments name: sources of programs, stored traces, plans, filters."""
    values = dataclasses.asdict(arguments)
    names: list[str] = []
    for name, role in sorted(roles_of(tool.arguments).items()):
        if role in (Role.SIDE, Role.STORED, Role.FILE):
            names += values[name] if isinstance(values[name], list) else [values[name]]
    return digest_of(names)


def base_id(tool: Tool, request: str, sources: Sources) -> str:
    """Id of the first attempt."""
    inputs = f"{request} {sources.code} {sources.settings}".encode("ascii")
    return f"{short_name(tool.name)}-{hashlib.sha256(inputs).hexdigest()[:_HASH_HEX]}"
