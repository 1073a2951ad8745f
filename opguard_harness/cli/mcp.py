"""`mcp`: the server that agents talk to."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import typer

from opguard_harness.access.commands import allowed
from opguard_harness.access.rules import Access
from opguard_harness.cli.outcome import Outcome
from opguard_harness.errors import UsageError
from opguard_harness.interface.declaration import GROUPS

_ENDING_S = 0.2
HELP = """Serve the tools to an agent over MCP: on standard input and output, or with --http on a port of this machine.

Jobs that it starts outlive it. What a call may touch is fixed here, by --root, --allow-command, --tools and --read-only."""


def mcp(
    http: str = typer.Option("", metavar="127.0.0.1:PORT", help="Serve over HTTP with a bearer token instead; port 0 takes a free one."),
    read_only: bool = typer.Option(False, "--read-only", help="Offer only the tools that start and write nothing."),
    tools: list[str] = typer.Option([], metavar="GROUPS", help=f"Offer only these groups, by comma: {', '.join(GROUPS)}."),
    root: list[str] = typer.Option(
        [], metavar="DIR", help="Touch only what lies in this folder; may be repeated. Default: CLAUDE_PROJECT_DIR, else the current one."
    ),
    allow_command: list[str] = typer.Option([], metavar="PATH", help="Another program that tools may start; may be repeated."),
    python: str = typer.Option("", metavar="PATH", help="Training Python of every call that names none."),
) -> Outcome:
    """Serve until the client closes its end, a signal comes or the parent process goes."""
    from opguard_harness.server.wire import take_wire

    parent = os.getppid()
    wire = None if http else take_wire()
    roots = _folders(root)
    access = Access(
        roots=roots,
        commands=allowed(roots, (*(name for name in allow_command if "/" not in name), *map(_program, allow_command))),
        read_only=read_only,
        groups=_groups(tools) or GROUPS,
        python=_program(python) if python else "",
    )

    import anyio

    from opguard_harness.server.adapter import build
    from opguard_harness.server.ending import until_ended

    serve: Callable[[], Awaitable[None]]
    if wire is None:
        from opguard_harness.server.http import listen, serve_http

        serve = partial(serve_http, build(access), listen(http))
    else:
        from opguard_harness.server.stdio import serve_stdio

        serve = partial(serve_stdio, build(access), wire)
    anyio.run(until_ended, serve, parent if wire else None)
    if _calls_left():  # what they write is renamed into place or not there at all
        sys.stderr.flush()
        os._exit(0)
    return Outcome("")


def _calls_left() -> bool:
    """Whether calls go on in threads that nothing can cancel; those that have just ended get a moment to say so."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread() and not thread.daemon]
    for thread in others:
        thread.join(_ENDING_S)
    return any(thread.is_alive() for thread in others)


def _folders(given: list[str]) -> tuple[Path, ...]:
    """The roots, links resolved.

    Raises:
        UsageError: One is no folder, or is empty.
    """
    roots = []
    for folder in given or [os.environ.get("CLAUDE_PROJECT_DIR") or "."]:
        if not folder.strip():
            raise UsageError("--root is empty.", hint="Name a folder, or leave the option out.")
        path = Path(_filled_in(folder)).expanduser().resolve()
        if not path.is_dir():
            raise UsageError(f"--root {folder} is no folder.", hint="Name a folder that is there.")
        roots.append(path)
    return tuple(roots)


def _filled_in(folder: str) -> str:
    """A root whose client left a variable of its configuration as it stood: what that means here.

    Raises:
        UsageError: The variable is not set here, and says no default.
    """
    found = re.fullmatch(r"\$\{(\w+)(?::-([^}]*))?\}(.*)", folder)
    if found is None:
        return folder
    value = os.environ.get(found[1]) or found[2]
    if not value:
        raise UsageError(
            f"--root {folder}: the client did not fill in {found[1]}, and it is not set here.", hint="Write the folder itself in its place."
        )
    return value + found[3]


def _groups(given: list[str]) -> tuple[str, ...]:
    """The groups of tools, in their own order.

    Raises:
        UsageError: There is none of that name, or none is named.
    """
    words = [word.strip() for text in given for word in text.split(",") if word.strip()]
    if given and not words:  # an empty variable of a configuration must not offer everything
        raise UsageError("--tools names no group.", hint=f"Groups: {', '.join(GROUPS)}.")
    for word in words:
        if word not in GROUPS:
            close = get_close_matches(word, GROUPS, n=1)
            raise UsageError(
                f"--tools: there is no group {word!r}{f'; did you mean {close[0]!r}?' if close else '.'}",
                hint=f"Groups: {', '.join(GROUPS)}.",
            )
    return tuple(group for group in GROUPS if group in words)


def _program(given: str) -> str:
    """A program as an absolute path, links kept: a virtual environment is found through them.

    Raises:
        UsageError: There is no such program.
    """
    found = shutil.which(Path(given).expanduser())
    if found is None:
        raise UsageError(f"There is no program {given!r}.", hint="Name a program that is on PATH, or its path.")
    return os.path.abspath(found)  # noqa: PTH100 - Path.resolve would follow the link out of the virtual environment
