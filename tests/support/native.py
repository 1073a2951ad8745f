"""The native engine for a test, or a skip that says why there is none."""

from __future__ import annotations

import pytest

from opguard_core.engines import native_build


def native_or_skip() -> native_build.Loaded:
    """The compiled observer, built if needed; skips the test that asks where it cannot be had."""
    found = native_build.load()
    if isinstance(found, native_build.Missing):
        pytest.skip(f"no native engine here: {found.reason}")
    return found
