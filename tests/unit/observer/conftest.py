from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def parts():
    """Parts of the native observer, without the rest of it."""
    pytest.importorskip("torch", reason="the observer is built against torch's headers")
    from tests.support.observer_parts import load

    module = load()
    if isinstance(module, str):
        pytest.skip(f"the native observer cannot be built here: {module}")
    return module
