"""Work of ours between the program's operators: unseen by every mode, subclass and graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run torch code that no dispatch mode, function mode or tensor subclass of the program notices.

    Autograd is left out as well, so that no sequence number is used up.
    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        yield
