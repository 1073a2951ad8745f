"""Stands for `OutsideCalls`: notes what it is told."""

from __future__ import annotations

from typing import Any


class Outside:
    """Observes every call."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.known = 0
        self.muted = False

    def watches(self) -> bool:
        return True

    def know_addresses(self, change: int) -> None:
        self.known += change

    def mute(self) -> Any:
        self.muted = True
        return self

    def unmute(self, lane: Any) -> None:
        if lane is not None:
            self.muted = False

    def before(self, operator: str, tensors: Any, text: str, frame: Any, *, stated: bool = False) -> Any:
        self.told.append((operator, [path for path, _ in tensors], text, frame.f_code.co_name))
        return "open"

    def after(self, call: Any, results: Any = (), written: Any = None) -> None:
        self.told.append(([path for path, _ in results], None if written is None else [path for path, _ in written]))

    def raised(self, call: Any, error: BaseException) -> None:
        self.told.append(f"{error}, muted {self.muted}")
