"""One comparison for all tests of timelines; none changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored_case import StoredCase, stored_case


@pytest.fixture(scope="session")
def five_steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredCase, Path]:
    folder = tmp_path_factory.mktemp("five-steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return stored_case(folder / "runs", steps=5), folder / "state"


@pytest.fixture
def case(five_steps: tuple[StoredCase, Path], monkeypatch: pytest.MonkeyPatch) -> StoredCase:
    monkeypatch.setenv("XDG_STATE_HOME", str(five_steps[1]))
    return five_steps[0]
