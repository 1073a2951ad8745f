"""The plan file of one run: what the launcher asks of every rank, and the proof that it was asked.

Written by the launcher into the run folder (0600 in 0700), read by the bootstrap (which only looks for the nonce) and by
each rank. Data only. Standard library only: it is read before the training Python is known to have more.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from opguard_core.errors import PlanError, PlanMismatch
from opguard_core.plan.config import AUTO, BUFFER_BYTES

PLAN_FORMAT = 1
PLAN_NAME = "plan.json"


@dataclass(frozen=True)
class Orders:
    """What every rank of one run is asked.

    Attributes:
        nonce: 32 random bytes in hex; the environment of the program's processes carries the same.
        argv: The program's command line, redacted.
        user_root: Folder that source files are named relative to.
        mode: One of ``ids.MODES``.
        steps: Half-open window of steps, or None.
        step_offset: Updates done before the run began, or None if unknown.
        deterministic: Whether to apply the determinism knobs.
        buffer_bytes: Bound on rows in memory, per rank.
        facts: Contract facts that the launcher gathered once for all ranks.
        plan: Hash of the plan that the run follows; empty without one.
        end_after: Updates after which the launcher ends the program, or None to let it run. Only for private copies.
        bare_steps: Unobserved updates that are timed before that.
        engine: One of ``config.ENGINES``: who observes operators.
        compiled: One of ``config.COMPILED``: how compiled regions are observed.
        semantic: Patterns of ``plan.semantic``: calls that get a name.
        callsites: Patterns of ``plan.callsites``: callees that are observed where they are called.
        keep: Plain form of ``plan.keeping.Keep``: what every rank keeps in full; None for nothing.
        transplant: Plain form of several ``plan.keeping.Transplant``; None for nothing.
        launcher: Process that waits for the program.
        format: Version of this file.
    """

    argv: list[str]
    user_root: str
    mode: str = "full"
    steps: tuple[int, int] | None = None
    step_offset: int | None = None
    deterministic: bool = False
    buffer_bytes: int = BUFFER_BYTES
    facts: dict[str, Any] = field(default_factory=dict)
    plan: str = ""
    end_after: int | None = None
    bare_steps: int = 0
    engine: str = AUTO
    compiled: str = AUTO
    semantic: tuple[str, ...] = ()
    callsites: tuple[str, ...] = ()
    keep: dict[str, Any] | None = None
    transplant: dict[str, Any] | None = None
    launcher: int = field(default_factory=os.getpid)
    nonce: str = field(default_factory=lambda: os.urandom(32).hex())
    format: int = PLAN_FORMAT

    @property
    def plan_hash(self) -> str:
        """sha256 of what two runs must share for their traces to be comparable: the plan's own, else that of mode and steps."""
        if self.plan:
            return self.plan
        shared: dict[str, Any] = {"format": self.format, "mode": self.mode, "steps": self.steps}
        if self.callsites:
            shared["callsites"] = sorted(self.callsites)
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> bytes:
        """The file's content; compact, since the bootstrap looks for ``"nonce":"..."`` without reading JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def read_orders(run_dir: Path) -> Orders:
    """Read the plan file of a run.

    Raises:
        PlanMismatch: It is of a newer format.
        PlanError: It is missing or damaged.
    """
    path = run_dir / PLAN_NAME
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != PLAN_FORMAT:
            raise PlanMismatch(
                f"{path} has format {record['format']}; this release reads {PLAN_FORMAT}.",
                hint="Launch with the OpGuard release that the training Python loads.",
            )
        values = {one.name: record[one.name] for one in fields(Orders)}
        values["steps"] = tuple(values["steps"]) if values["steps"] is not None else None
        values["semantic"], values["callsites"] = tuple(values["semantic"]), tuple(values["callsites"])
        return Orders(**values)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PlanError(f"Cannot read {path}: {type(error).__name__}: {error}.", hint="Start the run again.") from error
