"""The native engine where Python is asked for every content, as for memory that C++ cannot read; and what its trace then says."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opguard_core.capture.session import Session, start
from opguard_core.engines import native
from opguard_core.engines.twin import hand_over
from opguard_core.plan.config import RunConfig
from opguard_core.trace.reader import RankTrace
from tests.support.capturing import ROOT, Captured, MemorySink, left_over, own_gaps
from tests.support.engine_streams import Table, read_tables
from tests.support.late import LateBackend, answering_later


class _Bytes:
    """Hands on what reading bytes takes: the states of generators are read in C++ all the same."""

    def __init__(self, fingerprints: Any) -> None:
        self._fingerprints = fingerprints

    def add_element(self, name: str, *how: Any) -> None:
        if name == "uint8":
            self._fingerprints.add_element(name, *how)

    def set_function(self, *function: Any) -> None:
        self._fingerprints.set_function(*function)


def _fingerprints(module: Any) -> Any:
    made = module.Fingerprints(module.Cells())
    hand_over(_Bytes(made))
    return made


@contextlib.contextmanager
def asking_python() -> Iterator[None]:
    """Native sessions that start in here ask Python for every tensor but those of bytes."""
    before, native._fingerprints = native._fingerprints, _fingerprints
    try:
        yield
    finally:
        native._fingerprints = before


class Seen:
    """What one session wrote.

    Attributes:
        tables: Its tables, column by column.
        coverage: Without the threads that were left over when it began.
        report: What the manifest says of the native engine.
        contract: The facts of the run.
        session: The session; ended.
    """

    def __init__(self, session: Session, left: list[str]) -> None:
        self.session = session
        self.tables, manifest = read_tables(session.config.rank_dir)
        self.coverage = manifest["coverage"]
        self.coverage["gaps"] = own_gaps(self.coverage["gaps"], left)
        self.report, self.contract = manifest["engines"]["native"], manifest["contract"]

    def slots(self, operator: str) -> list[dict[str, dict[str, Any]]]:
        """Of each event of an operator: its slots by name."""
        events, slots = self.tables["events"], self.tables["slots"]
        found: dict[int, dict[str, dict[str, Any]]] = {
            seq: {} for seq, name in zip(events["seq"], events["operator"], strict=True) if operator in (name, name.split(".")[1])
        }
        for row, seq in enumerate(slots["seq"]):
            if seq in found:
                found[seq][slots["slot"][row]] = {name: column[row] for name, column in slots.items()}
        return list(found.values())


def observed(program: Callable[[], Any], folder: Path, backend: LateBackend | None = None, mode: str = "full", **options: Any) -> Seen:
    """Run a program under the native engine, which asks Python for everything.

    Args:
        program: What to run.
        folder: Absent; gets the trace.
        backend: The device that answers later; None: everything answers at once.
        mode: One of ``ids.MODES``.
        options: More of `RunConfig`.
    """
    left = left_over()
    gc.collect()
    gc.disable()  # when a cycle is freed must not depend on what is allocated beside it
    try:
        with asking_python(), contextlib.nullcontext() if backend is None else answering_later(backend):
            session = start(RunConfig(run_dir=folder, user_root=ROOT, mode=mode, engine="native", **options))
            try:
                program()
            finally:
                session.stop("exit")
    finally:
        gc.enable()
    return Seen(session, left)


def differences(one: Seen, other: Seen) -> list[str]:
    """How two runs differ from each other, but for clocks: as readable lines."""
    found = []
    for table, columns in one.tables.items():
        for name, column in columns.items():
            mine: Table | Any = other.tables[table][name]
            if name not in ("t_host_ns", "t_device_ns") and column != mine:
                first = next((row for row, (a, b) in enumerate(zip(column, mine, strict=False)) if a != b), None)
                found.append(f"{table}.{name}: {len(column)} and {len(mine)} rows, differ from row {first}")
    return found


@contextlib.contextmanager
def capturing_natively(mode: str = "verify") -> Iterator[Captured]:
    """As `capturing.capturing`, under the native engine: the rows are those of the trace that it wrote."""
    captured = Captured(MemorySink())
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        captured.session = start(RunConfig(run_dir=folder, user_root=ROOT, mode=mode, engine="native"))
        try:
            yield captured
        finally:
            captured.session.stop("exit")
        for window in RankTrace.open(captured.session.config.rank_dir).iter_windows():
            for index in range(len(window)):
                event = window.event(index)
                captured.sink.events.append(event)
                captured.sink.slots[event.seq] = list(window.slots_of(index))
