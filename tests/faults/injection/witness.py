"""What a run computed, seen without capture: values told to Python, state after each update, all that is alive at the end.

Two runs with equal testimonies computed the same; a fault in one of them was absorbed.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.faults.injection.memory import content, is_plain

MAX_OBJECTS = 200_000


class Witness:
    """Collects the testimony of one process.

    Args:
        root: Folder of the program; locals of its frames are its own.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._reads, self._updates, self._final = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._num_reads = self._num_updates = self._num_final = 0

    def install(self) -> None:
        """Look after every optimizer step; before capture starts."""
        register_optimizer_step_post_hook(self._updated)

    def read(self, value: Any) -> None:
        """A value left for Python."""
        self._reads.update(f"{value!r};".encode())
        self._num_reads += 1

    def _updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._tensor(self._updates, parameter)
        for value in _walk(list(optimizer.state.values())):
            self._tensor(self._updates, value)
        self._num_updates += 1

    def last(self, frame: Any) -> None:
        """The last operator has run: everything the program's frames hold, and the random state."""
        held: list[Any] = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._root):
                held += [frame.f_locals[name] for name in sorted(frame.f_locals)]
                held += [frame.f_globals[name] for name in sorted(frame.f_globals)]
            frame = frame.f_back
        for value in _walk(held):
            self._tensor(self._final, value)
            self._num_final += 1
        self._final.update(torch.default_generator.get_state().numpy().tobytes())

    @staticmethod
    def _tensor(digest: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
            if is_plain(value):
                digest.update(content(value))
        else:
            digest.update(f"{value!r}".encode())

    def testimony(self, printed: bytes) -> dict[str, Any]:
        """All of it, as text that compares equal or not."""
        return {
            "reads": [self._num_reads, self._reads.hexdigest()],
            "updates": [self._num_updates, self._updates.hexdigest()],
            "final": [self._num_final, self._final.hexdigest()],
            "printed": [len(printed), hashlib.sha256(printed).hexdigest()],
        }


def _walk(held: list[Any]) -> Iterator[Any]:
    """Tensors and numbers reachable from values, each object once, in an order that depends on the program alone."""
    seen: set[int] = set()
    waiting = held[::-1]
    while waiting and len(seen) < MAX_OBJECTS:
        value = waiting.pop()
        if type(value) in (float, int, bool):
            yield value
            continue
        if id(value) in seen or isinstance(value, (str, bytes, type, types.ModuleType, types.FrameType)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
            if value.is_leaf and value.grad is not None:
                waiting.append(value.grad)
        elif isinstance(value, dict):
            waiting += list(value.values())[::-1]
        elif isinstance(value, (list, tuple)):
            waiting += list(value)[::-1]
        elif isinstance(value, types.FunctionType):
            waiting += [cell.cell_contents for cell in (value.__closure__ or ()) if _filled(cell)]
        elif isinstance(value, types.MethodType):
            waiting.append(value.__self__)
        elif isinstance(getattr(value, "__dict__", None), dict):
            waiting += list(value.__dict__.values())[::-1]


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
