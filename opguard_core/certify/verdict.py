"""The verdict as a value: what ``compare --json`` prints is built from these and nothing else.

The keys here are the stable interface of the answer (schema 1). Reference always comes before suspect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

VerdictWord = Literal["diverged", "identical", "inconclusive"]


@dataclass(frozen=True)
class Place:
    """A source expression: the PLACE of DESIGN section 5.

    ``file`` is POSIX and relative to the run's folder, else ``<distribution>/path``, else absolute. ``text`` is the
    expression, ``statement`` the whole dedented statement. Lines are 1-based, columns are UTF-8 byte offsets.
    """

    file: str
    line: int
    end_line: int
    column: int
    end_column: int
    function: str
    text: str
    statement: str


@dataclass(frozen=True)
class Sides:
    """One thing on both sides; None where that side lacks it."""

    reference: Any = None
    suspect: Any = None


@dataclass(frozen=True)
class Pivot:
    """A boundary named in an answer: the pivot itself, an isolated difference, or another rank's first difference."""

    rank: int
    step: int
    microbatch: int
    phase: str
    operator: str
    slot: str
    origin: str
    origin_alternatives: list[str]
    stream: int | None
    thread: str
    stack: Sides  # each side: list[Place], outermost first, or None
    reference: Place | None
    suspect: Place | None
    forward: Sides | None  # forward places of a backward boundary
    near: list[dict[str, Any]]  # other places a reader should look at: missing or extra operator, first consumer
    seq: Sides = field(default_factory=Sides)  # event numbers, for evidence
    kernels: dict[str, Any] | None = None  # what it launched on each side, and how that differs; None where nothing watched


@dataclass(frozen=True)
class Reason:
    """Why a verdict is inconclusive, or a limit of what it says; with what to do about it."""

    slug: str
    text: str
    fix: str


@dataclass
class Verdict:
    """The judgement of one comparison; ``seconds``, ``exit``, ``trace`` and ``contract`` are added by the caller."""

    verdict: VerdictWord
    mode: str
    scope: dict[str, Any]
    pivot: Pivot | None
    isolated: list[Pivot]
    rank_firsts: list[Pivot]
    prefix: dict[str, int]  # pairs, tensors, bytes
    compared: dict[str, Any]  # ranks, steps, paired_share, parameter_updates, losses, …
    coverage: dict[str, Any]
    filters: list[dict[str, Any]]
    reasons: list[Reason]
    spread: dict[str, Any] | None = None  # how the pivot's difference goes on inside its window
    located: dict[str, Any] | None = None  # mode sentinel: the first step whose state differs, and which kinds of state
    device_work: dict[str, Any] | None = None  # which share of the device's work has a boundary, by side and rank
    semantic: dict[str, Any] | None = None  # named calls and values of both; None where there are none
    candidates: list[dict[str, Any]] = field(default_factory=list)  # boundaries that the reasons of `inconclusive` speak about
