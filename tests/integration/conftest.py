"""What tests of comparisons share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def in_this_process(monkeypatch):
    """Comparisons and replays run their programs here, without a process for each. Needs torch."""
    from opguard_harness.compare import confirm, pipeline
    from tests.support import inside

    for module in (confirm, pipeline):
        monkeypatch.setattr(module, "run_all", inside.run_all)


@pytest.fixture
def compared(tmp_path, monkeypatch, in_this_process):
    """Runs two programs here, given as text or folders, and judges them; gives the answer."""
    from opguard_harness.interface.parsing import parse_arguments
    from opguard_harness.registry import find
    from opguard_harness.report.progress import Silent
    from opguard_harness.workspace.stored import answer_of

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*programs):
        for side, given in zip(("reference", "suspect"), programs, strict=True):
            if isinstance(given, Path):
                shutil.copytree(given, tmp_path / side)
            else:
                (tmp_path / side).mkdir()
                (tmp_path / side / "train.py").write_text(given)
        declared = find("compare")
        named = {side: str(tmp_path / side) for side in ("reference", "suspect")}
        return answer_of(declared.run(parse_arguments(declared, named), Silent()).comparison)

    return run
