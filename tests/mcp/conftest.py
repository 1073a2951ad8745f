"""A state folder of its own for every test, and one event loop."""

import pytest

from tests.support.planted_tools import plant


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "state" / "opguard"


@pytest.fixture
def planted(monkeypatch):
    plant(monkeypatch.setattr)
