"""The plan: what two runs agree on before either of them runs long.

A plan is made by a preflight of both sides and names the boundaries that they share, together with the mode, the steps and
the determinism knobs that both runs will use. Under a plan every boundary is still observed; its sites are looked for in
the run afterwards. Its hash goes into both traces: two traces under different plans are never called equal.

A site is named by what survives a refactoring (operator, phase, module, function, expression, tensors, how often), never
by a line number. Data only: nothing in a plan names code to import. No torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from opguard_core.errors import ConflictingOptions, PlanError, PlanMismatch
from opguard_core.ids import OPERATOR_MODES, Phase
from opguard_core.trace.files import write_atomic

PLAN_FORMAT = 1
MAX_PLAN_BYTES = 256 * 1024 * 1024
_MOST = 2**53 - 1
PLANNED_MODES = OPERATOR_MODES  # a trace of another mode has no boundaries to name
_HINT = "Make it again with `opguard-harness preflight --plan FILE`."


@dataclass(frozen=True, slots=True, order=True)
class SiteKey:
    """Where a boundary is, in words that a refactoring leaves alone.

    Attributes:
        operator: Folded name: without overload, `.out` and the in-place underscore; list operators by their element's name.
        phase: One of ``ids.Phase``.
        module: Path of the module in whose forward it runs; "" outside modules.
        function: Qualified name of the user's function (of the forward boundary for a backward one).
        text: The expression without white space.
        tensors: ``dtype[sizes]`` of each tensor, arguments before results.
    """

    operator: str
    phase: str
    module: str
    function: str
    text: str
    tensors: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, "tensors": list(self.tensors)}


@dataclass(frozen=True, slots=True)
class PlanSite:
    """One boundary that both sides run.

    Attributes:
        key: Where it is in the reference.
        other: Where it is in the suspect if its key differs there; else None.
        every: Executions in a step; where steps differ, the most of any step looked at.
        first: Executions in the first step on top of these (set-up, initialisation).
        confidence: How sure the two are the same: 3 same data path, 2 same place or unique, 1 operator and shape only.
    """

    key: SiteKey
    other: SiteKey | None = None
    every: int = 1
    first: int = 0
    confidence: int = 3

    def to_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return {
            "key": self.key.to_dict(),
            "other": None if self.other is None else self.other.to_dict(),
            "every": self.every,
            "first": self.first,
            "confidence": self.confidence,
        }


@dataclass(frozen=True)
class Plan:
    """A whole plan.

    Attributes:
        mode: One of ``PLANNED_MODES``.
        steps: Half-open window of 0-based steps to record, or None for all.
        deterministic: Whether the determinism knobs are applied in both programs.
        semantic: Patterns of ``plan.semantic`` that name calls in both runs.
        callsites: Patterns of ``plan.callsites``: callees that both runs observe where they are called.
        sites: The boundaries both sides share, in the order in which the reference runs them; the hash ignores the order.
        about: Facts that are not part of the agreement (who made it, from what, what it costs).
    """

    mode: str
    steps: tuple[int, int] | None
    deterministic: bool
    sites: tuple[PlanSite, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    semantic: tuple[str, ...] = ()
    callsites: tuple[str, ...] = ()

    @cached_property
    def hash(self) -> str:
        """sha256 over everything that both runs must share, in hex.

        Cost: linear in the sites, once.
        """
        sites = sorted(orjson.dumps(site.to_dict(), option=orjson.OPT_SORT_KEYS) for site in self.sites)
        shared = {"format": PLAN_FORMAT, "mode": self.mode, "steps": self.steps, "deterministic": self.deterministic}
        if self.semantic:
            shared["semantic"] = sorted(self.semantic)
        if self.callsites:
            shared["callsites"] = sorted(self.callsites)
        return hashlib.sha256(b"\n".join([orjson.dumps(shared, option=orjson.OPT_SORT_KEYS), *sites])).hexdigest()

    @property
    def recorded_steps(self) -> int | None:
        """Steps that the preflight was told each run records; None if it was not told, or the plan does not say."""
        cost = self.about.get("cost")
        planned = cost.get("planned_steps") if isinstance(cost, Mapping) else None
        return planned if type(planned) is int and planned > 0 else None

    def require(
        self,
        *,
        mode: str,
        steps: tuple[int, int] | None,
        deterministic: bool,
        semantic: Sequence[str] = (),
        callsites: Sequence[str] = (),
    ) -> None:
        """Refuse a run that would not be the planned one.

        Raises:
            ConflictingOptions: Mode, steps, knobs or, if any are given, names of calls are others.
        """
        asked: dict[str, Any] = {"mode": mode, "steps": steps, "deterministic": deterministic}
        if semantic:
            asked["semantic"] = tuple(semantic)
        if callsites:
            asked["callsites"] = tuple(callsites)
        own = {name: getattr(self, name) for name in asked}
        wrong = [f"{name} {_shown(own[name])}, not {_shown(value)}" for name, value in asked.items() if own[name] != value]
        if wrong:
            raise ConflictingOptions(
                f"The plan {self.hash[:12]} fixes {' and '.join(wrong)}.",
                hint="Leave these options out, or make another plan: a plan fixes mode, steps and determinism.",
            )

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return {
            "format": PLAN_FORMAT,
            "mode": self.mode,
            "steps": None if self.steps is None else list(self.steps),
            "deterministic": self.deterministic,
            **({"semantic": list(self.semantic)} if self.semantic else {}),
            **({"callsites": list(self.callsites)} if self.callsites else {}),
            "hash": self.hash,
            "about": dict(self.about),
            "sites": [site.to_dict() for site in self.sites],
        }

    def save(self, path: Path) -> None:
        """Write the document, whole or not at all; an older plan of that name is replaced.

        Raises:
            PlanError: It cannot be written there.
        """
        check_target(path)
        try:
            write_atomic(path, orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
        except OSError as error:
            raise PlanError(
                f"The plan cannot be written to {path}: {error.strerror}.", slug="plan-unwritable", hint="Name a file in a writable folder."
            ) from error


def _shown(value: object) -> str:
    if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        return ", ".join(value) or "none"
    if isinstance(value, tuple):
        return f"{value[0]}:{value[1]}"
    return "all" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def check_target(path: Path) -> None:
    """Refuse a place where a plan must not or cannot be written.

    Raises:
        PlanError: Something else than a plan is there, or there is no folder.
    """
    if not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif path.is_symlink() or (path.exists() and not _is_plan(path)):
        why = "something is there that is no plan"
    else:
        return
    raise PlanError(f"The plan cannot be written to {path}: {why}.", slug="plan-unwritable", hint="Name a new file in a folder of yours.")


def _is_plan(path: Path) -> bool:
    try:
        load_plan(path)
    except PlanError:
        return False
    return True


def load_plan(path: Path) -> Plan:
    """Read and check a plan.

    Raises:
        PlanError: It is not there, is damaged, or its hash is not that of its contents.
        PlanMismatch: A newer release wrote it.
    """
    try:
        size = path.stat().st_size
        if not path.is_file() or size > MAX_PLAN_BYTES:
            kind = "a folder" if path.is_dir() else f"{size} bytes long" if path.is_file() else "no file"
            raise PlanError(f"The plan {path} cannot be read: it is {kind}.", slug="plan-not-found", hint=_HINT)
        content = path.read_bytes()
    except OSError as error:
        raise PlanError(f"The plan {path} cannot be read: {error.strerror}.", slug="plan-not-found", hint=_HINT) from error
    return parse_plan(content, path)


def parse_plan(content: bytes, path: Path) -> Plan:
    """Check a plan that was read already.

    Args:
        content: The whole file.
        path: Where it was, for messages.

    Raises:
        PlanError: It is damaged, or its hash is not that of its contents.
        PlanMismatch: A newer release wrote it.
    """
    try:
        record = orjson.loads(content)
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        raise _damaged(path, "it has no format number")
    if record["format"] > PLAN_FORMAT:
        raise PlanMismatch(
            f"The plan {path} has format {record['format']}; this release reads up to {PLAN_FORMAT}.",
            slug="plan-newer",
            hint="Install the OpGuard release that made it, or make it again with this one.",
        )
    plan = _build(record, path)
    if plan.hash != record.get("hash"):
        raise _damaged(path, f"its contents have the hash {plan.hash[:12]}, it says {str(record.get('hash'))[:12]}: it was changed by hand")
    return plan


def _damaged(path: Path, why: str) -> PlanError:
    return PlanError(f"The plan {path} is damaged: {why}.", slug="plan-damaged", hint=_HINT)


def _build(record: Mapping[str, Any], path: Path) -> Plan:
    """The plan that a document says, if it says one."""
    mode, steps, deterministic, about = (record.get(name) for name in ("mode", "steps", "deterministic", "about"))
    if mode not in PLANNED_MODES:
        raise _damaged(path, f"mode {repr(mode)[:40]} is not one of {', '.join(PLANNED_MODES)}")
    window = None
    if steps is not None:
        if not (isinstance(steps, list) and len(steps) == 2 and all(type(step) is int for step in steps) and 0 <= steps[0] < steps[1]):
            raise _damaged(path, f"steps {repr(steps)[:40]} are not two whole numbers A < B")
        window = (steps[0], steps[1])
    if type(deterministic) is not bool or not isinstance(about, dict) or not isinstance(record.get("sites"), list):
        raise _damaged(path, "it lacks deterministic, about or sites")
    semantic, callsites = (_texts(record, name, path) for name in ("semantic", "callsites"))
    sites = tuple(_site(entry, path) for entry in record["sites"])
    return Plan(mode, window, deterministic, sites, about, semantic, callsites)


def _texts(record: Mapping[str, Any], name: str, path: Path) -> tuple[str, ...]:
    """A list of texts that a document may leave out."""
    found = record.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _damaged(path, f"what it names {name} is no list of texts")
    return tuple(found)


def _site(entry: Any, path: Path) -> PlanSite:
    if not isinstance(entry, dict):
        raise _damaged(path, f"a site is {type(entry).__name__}")
    counts: list[int] = []
    for name, least, most in (("every", 0, _MOST), ("first", 0, _MOST), ("confidence", 1, 3)):
        count = entry.get(name)
        if type(count) is not int or not least <= count <= most:
            raise _damaged(path, f"a site's {name} is {str(count)[:40]}")
        counts.append(count)
    every, first, confidence = counts
    other = entry.get("other")
    return PlanSite(_key(entry.get("key"), path), None if other is None else _key(other, path), every, first, confidence)


def _key(entry: Any, path: Path) -> SiteKey:
    texts = ("operator", "phase", "module", "function", "text")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in texts):
        raise _damaged(path, "a site's key lacks a text")
    tensors = entry.get("tensors")
    if not isinstance(tensors, list) or not all(isinstance(tensor, str) for tensor in tensors):
        raise _damaged(path, "a site's tensors are not texts")
    if entry["phase"] not in {str(phase) for phase in Phase}:
        raise _damaged(path, f"a site's phase is {entry['phase']!r}")
    operator, phase, module, function, text = (str(entry[name]) for name in texts)
    return SiteKey(operator, phase, module, function, text, tuple(tensors))
