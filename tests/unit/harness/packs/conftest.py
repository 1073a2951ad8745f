"""One case for all tests of packs; each has a copy of the state folder, and the traces in common, which none changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.packs import whole_case
from tests.support.stored_case import StoredCase


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredCase, Path]:
    folder = tmp_path_factory.mktemp("whole-case")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return whole_case(folder / "runs"), folder / "state"


@pytest.fixture
def made(template: tuple[StoredCase, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredCase:
    found, state = template
    shutil.copytree(state, tmp_path / "state", symlinks=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StoredCase(found.case, found.comparison)
