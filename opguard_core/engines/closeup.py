"""Boundaries that this run looks at more closely: found by their keys while they happen, kept in full or given other bytes.

Counts what stands at a place that a key names, exactly as `trace.boundary` counts it in a trace: once for each event, in the order
in which they begin. Costs nothing where nothing is asked for, and one dictionary look-up for every other operator.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from opguard_core.engines.keeper import Keeper
from opguard_core.engines.kinds import pieces
from opguard_core.engines.transplanter import Transplanter
from opguard_core.errors import OpGuardError, TransplantFailed

if TYPE_CHECKING:
    from opguard_core.engines.calls import Call

Place = tuple[int, str, str, str, str, str]
Words = Callable[[int | None], tuple[str, str]]
Tensors = Callable[[], Iterator[tuple[str, torch.Tensor]]]


class Closeup:
    """All that one rank was asked about single boundaries.

    Args:
        keeper: Keeps some of them; None for none.
        transplanters: Each puts bytes into one.
        words: Function and expression of a frame.
    """

    def __init__(self, keeper: Keeper | None, transplanters: Sequence[Transplanter], words: Words) -> None:
        self.keeper, self.transplanters = keeper, list(transplanters)
        self._transplants = {(one.key.place, one.key.occurrence): one for one in transplanters}
        self._words = words
        keys = [*(keeper.keys if keeper else ()), *(one.key for one in transplanters)]
        self._operators = {key.operator for key in keys}
        self._places = {key.place for key in keys}
        self._counts: Counter[Place] = Counter()
        self._lock = threading.RLock()
        self.end: Callable[[OpGuardError], NoReturn] = _exit

    def wants(self, operator: str) -> bool:
        """Whether some key names this operator."""
        return operator in self._operators

    def count(self, step: int, phase: str, operator: str, module: str, user_frame: int | None) -> tuple[Place, int] | None:
        """Count an event that begins; its place and occurrence if some key names the place."""
        place = (step, phase, operator, module, *self._words(user_frame))
        if place not in self._places:
            return None
        with self._lock:
            number = self._counts[place]
            self._counts[place] += 1
        return place, number

    def begins(self, call: Call, user_frame: int | None, tensors: Tensors, look_again: Callable[[dict[str, torch.Tensor]], None]) -> None:
        """An operator is about to run: remember what it is, put other bytes into what it reads, and keep that.

        Args:
            call: Everything but its results is known.
            user_frame: Innermost user frame.
            tensors: Slot path and tensor of each argument.
            look_again: Called when their bytes have changed.

        Raises:
            BaseException: A transplant cannot be done, and the run ends: what `end` raises.
        """
        _, _, step, _, phase, module, *_ = call.header
        call.closeup = self.count(step, phase, call.plan.operator, module, user_frame)
        if call.closeup is None:
            return
        transplanter = self._transplants.get(call.closeup)
        if transplanter is not None:
            arguments = dict(tensors())
            if self._put(transplanter, call.entry.seq, arguments, arguments=True):
                look_again(arguments)
        if self.keeper is not None:
            with self._kept_apart(call):
                self.keeper.begins(call, pieces(tensors()))

    def returned(self, call: Call, tensors: Tensors, *, later: bool) -> None:
        """An operator has returned and nobody has seen its results: put other bytes there if that was asked for.

        Args:
            call: One that `begins` has remembered.
            tensors: Slot path and tensor of each result and each argument written in place.
            later: Its results are not there yet.

        Raises:
            BaseException: It cannot be done, and the run ends: what `end` raises.
        """
        transplanter = self._transplants.get(call.closeup)
        if transplanter is not None:
            self._put(transplanter, call.entry.seq, dict(tensors()), arguments=False, later=later)

    def renumber(self, call: Any, seq: int) -> None:
        """A call outside the dispatcher has got the number of its event."""
        if self.keeper is not None:
            self.keeper.renumber(call.seq, seq)
        call.seq = seq

    def takes_back(self, call: Any) -> None:
        """A call that `begins` has counted turned out to be no event."""
        with self._lock:
            self._counts[call.closeup[0]] -= 1
        if self.keeper is not None:
            self.keeper.renumber(call.seq, None)

    def _put(self, transplanter: Transplanter, seq: int, tensors: dict[str, torch.Tensor], *, arguments: bool, later: bool = False) -> bool:
        try:
            if later and transplanter.wants_results:
                raise TransplantFailed(f"The result of {transplanter.key.shown()} arrives later, by a collective; it cannot be replaced.")
            return transplanter.put(seq, tensors, arguments=arguments)
        except OpGuardError as error:
            failed = error
        except Exception as error:  # noqa: BLE001  whatever went wrong, a half-done transplant must not train on
            failed = TransplantFailed(f"The transplant into {transplanter.key.shown()} failed: {type(error).__name__}: {error}.")
        self.end(failed)

    def ended(self, call: Call, tensors: Iterator[tuple[str, torch.Tensor]], *, later: bool) -> None:
        """The results have been probed: keep them."""
        if self.keeper is not None:
            transplanter = self._transplants.get(call.closeup)
            put = {} if transplanter is None else transplanter.slots
            with self._kept_apart(call):
                self.keeper.ended(call, pieces(tensors), later=later, transplanted=put)

    def failed(self, call: Call, why: str) -> None:
        """The operator raised, or we failed to observe it."""
        if self.keeper is not None:
            with self._kept_apart(call):
                self.keeper.failed(call, why)

    @contextlib.contextmanager
    def _kept_apart(self, call: Call) -> Iterator[None]:
        """Our failure to keep a boundary costs its file, not its event."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  the step guard
            assert self.keeper is not None
            self.keeper.give_up(call, f"{type(error).__name__}: {error}")

    def report(self) -> dict[str, Any]:
        """What goes into the rank's manifest, at the end."""
        found: dict[str, Any] = {}
        if self.keeper is not None:
            found["kept"] = self.keeper.finish()
        if self.transplanters:
            found["transplanted"] = [one.report() for one in self.transplanters]
        return found


def _exit(error: OpGuardError) -> NoReturn:
    """For a session that nobody told how to end: no handler of the program for ordinary errors takes this."""
    raise SystemExit(str(error))
