"""Two synthetic runs with a planted difference and their comparison, in a state folder of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from opguard_harness.answer.plain import plain
from opguard_harness.config import runs_dir
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.workspace import evidence
from tests.support.driving.world import BROKEN, FAULT, PROGRAM, store_comparison, store_run
from tests.support.synthetic import Side, source_texts

FILE = PROGRAM[FAULT].site.file
TEXT = source_texts(Side(PROGRAM))[FILE]


class Stored(NamedTuple):
    """Ids, and where the traces lie."""

    comparison: str
    reference: Path
    suspect: Path

    def call(self, tool: str, **given: Any) -> dict[str, Any]:
        """One call of a tool that answers at once."""
        declared = find(tool)
        result: dict[str, Any] = plain(declared.run(parse_arguments(declared, given)))
        return result


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    evidence._digest.cache_clear()


EQUAL = Side(PROGRAM)


def store(suspect: Side = BROKEN, reference: Side = EQUAL, name: str = "align-0123456789ab") -> Stored:
    """Two stored runs and their comparison."""
    store_run("run-000000000001", reference)
    store_run("run-000000000002", suspect)
    store_comparison(name, "run-000000000001", "run-000000000002")
    return Stored(name, runs_dir() / "run-000000000001" / "trace", runs_dir() / "run-000000000002" / "trace")


@pytest.fixture
def stored() -> Stored:
    return store()
