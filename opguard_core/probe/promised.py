"""What stands where digests would until they have come: promises of single tensors, and of what follows from several.

Who needs the digests themselves asks `Promise.look`, which never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opguard_core.fingerprint.digest import Digests
from opguard_core.probe.gathered import Gathered
from opguard_core.probe.kinds import Unreadable


class Unchanged(NamedTuple):
    """A promise that came to nothing: there is nothing to record."""


class Promise:
    """The digests of one tensor, to come.

    Attributes:
        nbytes: Logical bytes of the tensor.
        ticket: What its backend calls it; 0 until it has been asked, see `Together`.
        result: What came, None until then.
        t_device_ns: Device clock of the probe, None until then or if there is none.
    """

    __slots__ = ("_deliveries", "nbytes", "result", "t_device_ns", "ticket")

    def __init__(self, deliveries: Any, nbytes: int, ticket: int) -> None:
        self._deliveries, self.nbytes, self.ticket = deliveries, nbytes, ticket
        self.result: Digests | Unreadable | Unchanged | None = None
        self.t_device_ns: int | None = None

    def look(self) -> Digests | Unreadable | Unchanged | None:
        """What came, None if it is still on its way. Never waits."""
        return self.result

    def keep(self, found: Digests | Unreadable, t_device_ns: int | None = None) -> None:
        """It has come; a second delivery changes nothing."""
        if self.result is None:
            self.t_device_ns = t_device_ns
            self.result = found

    def wait(self, timeout_s: float) -> None:
        """Wait a while for it."""
        if self._deliveries is not None:
            self._deliveries.wait(self.ticket, timeout_s)

    def lose(self, why: str) -> None:
        """Give it up."""
        self.keep(Unreadable(why))


Known = Digests | Promise
Outcome = Digests | Unreadable | Unchanged
Make = Callable[[Sequence[Digests]], Digests | Unchanged]


class Derived(Promise):
    """Digests that follow from others, at least one of which is a promise.

    Args:
        parts: In the order in which ``make`` wants them.
        make: Called once all are known.
        unreadable: What the whole is if a part cannot be read.
        nbytes: Logical bytes, as far as known before.
    """

    __slots__ = ("_make", "_parts", "_unreadable")

    def __init__(self, parts: Sequence[Known], make: Make, unreadable: Callable[[Unreadable], Unreadable], nbytes: int) -> None:
        super().__init__(None, nbytes, 0)
        self._parts, self._make, self._unreadable = tuple(parts), make, unreadable

    def look(self) -> Digests | Unreadable | Unchanged | None:
        """As `Promise.look`: works itself out as soon as it can."""
        parts = self._parts  # before the result is looked at: another thread sets that first and then lets go of these
        if self.result is not None:
            return self.result
        found: list[Digests] = []
        t_device_ns = None
        for part in parts:
            one = part.look() if isinstance(part, Promise) else part
            if one is None:
                return None
            if not isinstance(one, Digests):
                self.keep(self._unreadable(one if isinstance(one, Unreadable) else Unreadable("nothing there")))
                return self.result
            found.append(one)
            t_device_ns = part.t_device_ns if isinstance(part, Promise) else t_device_ns
        made = self._make(found)
        self.t_device_ns = t_device_ns
        self.result = made
        self._parts = ()
        return made

    def wait(self, timeout_s: float) -> None:
        """Wait a while for the first part that is missing."""
        for part in self._parts:
            if isinstance(part, Promise) and part.look() is None:
                part.wait(timeout_s)
                return

    def lose(self, why: str) -> None:
        """Give up what is missing."""
        for part in self._parts:
            if isinstance(part, Promise) and part.look() is None:
                part.lose(why)


class Place(Promise):
    """Hands what comes for one tensor to those that were asked for with it."""

    __slots__ = ("_gathered", "_place")

    def __init__(self, gathered: Gathered, place: int) -> None:
        super().__init__(None, 0, 0)
        self._gathered, self._place = gathered, place

    def keep(self, found: Digests | Unreadable, t_device_ns: int | None = None) -> None:
        """As `Promise.keep`."""
        self._gathered.keep(self._place, found)


class Difference(Promise):
    """What a tensor became, if that is not what it was: `Unchanged` otherwise, and where what it was is not known.

    Args:
        before: ``mix64`` of an earlier look, or its promise.
        after: The later look.
        undeclared: Whether such a difference is a write that was said not to happen; those are counted.
    """

    __slots__ = ("_after", "_before", "undeclared")

    def __init__(self, before: int | Promise, after: Known, *, undeclared: bool = False) -> None:
        super().__init__(None, after.nbytes, 0)
        self._before, self._after, self.undeclared = before, after, undeclared

    def look(self) -> Digests | Unreadable | Unchanged | None:
        """As `Promise.look`: works itself out as soon as it can."""
        if self.result is None:
            before = self._before.look() if isinstance(self._before, Promise) else self._before
            after = self._after.look() if isinstance(self._after, Promise) else self._after
            if before is None or after is None:
                return None
            if isinstance(self._after, Promise):
                self.t_device_ns = self._after.t_device_ns
            mix64 = before.mix64 if isinstance(before, Digests) else before
            changed = isinstance(mix64, int) and not (isinstance(after, Digests) and after.mix64 == mix64)
            self.result = after if changed else Unchanged()
        return self.result

    def wait(self, timeout_s: float) -> None:
        """Wait a while for the first look that is missing."""
        for part in (self._before, self._after):
            if isinstance(part, Promise) and part.look() is None:
                part.wait(timeout_s)
                return

    def lose(self, why: str) -> None:
        """Give up what is missing."""
        for part in (self._before, self._after):
            if isinstance(part, Promise) and part.look() is None:
                part.lose(why)
