"""What a tool is: one declaration from which the server, the shell, the README table and the schemas are made.

Arguments and results are plain dataclasses, so that declaring a tool imports nothing. Their pydantic models are built when
a schema or a check is first asked for (``interface.schemas``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

Report = Callable[[float, float | None, str], Awaitable[None]]
"""Told progress while a call waits: done, of how many (None if unknown), what."""

GROUPS = ("environment", "cases", "runs", "compare", "evidence", "filters", "source", "report")


class Kind(Enum):
    """How a tool is carried out.

    ``ANSWER``: ``run(arguments)`` at once, in a worker thread of a server. ``WAIT``: ``await run(arguments, report)``, which is
    told progress and may be cancelled. ``JOB``: the call starts a job and answers with a ``JobResult``; the job's supervisor
    carries out ``run(arguments, progress)``, whose result `get_job` hands on.
    """

    ANSWER = "answer"
    WAIT = "wait"
    JOB = "job"


class Role(Enum):
    """What an argument names, and so what ``access`` has to say about it. Lists have the role of their items, but for a command."""

    TEXT = "text"
    SIDE = "side"  # a folder, a script or a trace directory
    STORED = "stored"  # a run, comparison or job: an id, or a folder
    FILE = "file"  # a file that is read, or written in the state folder; empty names none
    COMMAND = "command"  # a command line
    PYTHON = "python"  # an interpreter; empty looks for one
    VARIABLES = "variables"  # NAME=VALUE pairs for a program
    WORDS = "words"  # words for a program's command line; stored redacted
    COMMIT = "commit"  # `X_commit`: a commit of the repository that the side `X` lies in


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: Verb and noun, the key everywhere.
        group: One of ``GROUPS``.
        text: What it does and when to use it; the first sentence is the README row.
        arguments: Dataclass of its arguments; flat types with defaults, described through ``argument``.
        result: Dataclass of its result; has ``summary``, ``evidence``, ``next`` and ``truncated``. Of a job: that of the finished job.
        run: Carries it out, as ``kind`` says.
        read_only: Changes nothing on disk.
        destructive: May change things outside our folders (a training is arbitrary code).
        idempotent: Asking twice has the effect of asking once.
        open_world: Runs code that may reach anything.
        kind: How it is carried out.
        check: Of a job: refuses what can be seen before one is started; called with the arguments.
        wait_s: Of a job: seconds that the call waits for it before it answers with the job as it is then.
        title: What a person reads; the name in words, if empty.
    """

    name: str
    group: str
    text: str
    arguments: type
    result: type
    run: Callable[..., Any]
    read_only: bool
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    kind: Kind = Kind.ANSWER
    check: Callable[[Any], object] | None = None
    wait_s: float = 0.0
    title: str = ""

    @property
    def headline(self) -> str:
        """The first sentence of the text."""
        return self.text.split(". ")[0].rstrip(".") + "."

    @property
    def heading(self) -> str:
        """The title, or the name in words."""
        return self.title or self.name.replace("_", " ").capitalize()


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
    """What every result has. ``summary`` stands alone: one or two sentences. Of a ``sparse`` kind, fields that say nothing are not sent."""

    sparse: ClassVar[bool] = False
    summary: str
    evidence: list[Evidence] = field(default_factory=list)
    next: list[Next] = field(default_factory=list)
    truncated: Truncated | None = None


@dataclass(frozen=True, kw_only=True)
class JobResult(Result):
    """A job as it is now; what every tool of kind ``JOB`` answers, and `get_job`.

    ``state``: queued, running, succeeded, failed, cancelled or lost. ``steps``: {"done", "planned"} training steps of the phase, null
    where unknown. ``result``: what the tool found, once it has succeeded, less what stands in this object already. ``error``: {"slug",
    "text", "fix"} of a failed one. ``left``: traces that a job that did not succeed has left.
    """

    sparse: ClassVar[bool] = True
    job: str
    tool: str
    state: str
    phase: str = ""
    steps: dict[str, int | None] = field(default_factory=dict)
    elapsed_s: float = 0.0
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    left: list[str] = field(default_factory=list)


def argument(text: str, default: Any = dataclasses.MISSING, role: Role = Role.TEXT, **limits: Any) -> Any:
    """Describe one argument.

    Args:
        text: What it means.
        default: Value when it is left out; without one it is required.
        role: What it names; decides what is checked before the tool sees it.
        **limits: pydantic constraints such as ``ge``, ``le`` or ``pattern``.
    """
    metadata = {"text": text, "limits": limits, "role": role}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def roles_of(kind: type) -> dict[str, Role]:
    """The role of each argument of an arguments dataclass."""
    return {item.name: item.metadata.get("role", Role.TEXT) for item in dataclasses.fields(kind)}
