"""What tests of sessions share."""

from __future__ import annotations

import functools
import gc

import pytest


@pytest.fixture(scope="module")
def quick_sessions():
    """Reading the versions of installed packages, and collecting garbage among all that is imported, is most of a small session's cost."""
    from opguard_core.determinism import facts

    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "_version", functools.lru_cache(None)(facts._version))
        yield
    gc.unfreeze()
