"""Import our own needs without issuing a warning in the user's program, and without touching what it remembers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_IGNORE_ALL = ("ignore", None, Warning, None, 0)


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Ignore every warning inside the block.

    Not ``warnings.catch_warnings``: that makes Python forget which warnings were shown once already, so the program would
    show some of them a second time.
    """
    filters = warnings.filters
    assert isinstance(filters, list)
    filters.insert(0, _IGNORE_ALL)
    try:
        yield
    finally:
        if _IGNORE_ALL in filters:
            filters.remove(_IGNORE_ALL)
