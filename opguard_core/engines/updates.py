"""Which optimizer counts the steps, and at which step a resumed run began."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from opguard_core.engines.names import Names
from opguard_core.engines.progress import Progress
from opguard_core.probe.tensor import address_of

_HOST_NUMBERS: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
}
IDLE_STEPS = 2  # steps of others after which an optimizer that never stepped is no longer waited for
MAX_STEPS = 1 << 31  # a larger number is no count of steps; the column of steps has 32 bits


class _Seen:
    """What is known of one optimizer; when it was met and last stepped is told in updates of any."""

    __slots__ = ("awaited_in_vain", "gradient_bytes", "last_step", "loaded", "met", "steps", "steps_since_count")

    def __init__(self, met: int) -> None:
        self.gradient_bytes = 0
        self.steps = 0
        self.steps_since_count = 0
        self.met = met
        self.last_step = 0
        self.loaded = False  # its state came from elsewhere
        self.awaited_in_vain = False


class Updates:
    """Picks, of several optimizers, the one whose parameters receive the most gradient bytes, and says whether others follow it.

    An optimizer that has not stepped yet is judged by the size of its trainable parameters, so that a discriminator that
    steps before its larger generator does not count; one that never steps is given up after `IDLE_STEPS` steps of another.
    One that was made for parameters of the one that counts, after that had last stepped, takes its place; and so does one for
    parameters of the same shapes if its state was loaded: a run resumed in its own process. Whether the old one is still alive
    is an accident of references and of the garbage collector, and must not decide. Shapes alone decide nothing: a second
    critic, or what an inner loop makes for each of its tasks, stands beside the first.
    """

    def __init__(self, progress: Progress, names: Names) -> None:
        self._progress, self._names = progress, names
        self._seen: dict[int, _Seen] = {}
        self._given_up: set[int] = set()
        self._updates = 0
        self._begun = False  # the optimizer that counts has stepped: at which step the run began is known

    def meet(self, optimizer: Any) -> None:
        """An optimizer was made."""
        self._of(optimizer)

    def begin(self, optimizer: Any) -> None:
        """An update is about to start: weigh its gradients and notice a resumed run."""
        seen = self._of(optimizer)
        self.weigh(optimizer)
        if seen.steps == 0 and self._progress.completed == 0:
            self.loaded(optimizer)

    def weigh(self, optimizer: Any) -> None:
        """Take note of how many bytes of gradients an optimizer has."""
        seen = self._of(optimizer)
        seen.gradient_bytes = max(seen.gradient_bytes, self._names.gradient_bytes(optimizer))

    def _succeed(self, optimizer: Any, seen: _Seen) -> None:
        """Give up the optimizers that a new one takes the place of."""
        for other in self._names.optimizers():
            number = self._names.optimizer(other)
            before = self._of_number(number)
            takes_place = _share(other, optimizer) or (seen.loaded and _same_shapes(other, optimizer))
            if before.steps and before.last_step <= seen.met and takes_place:
                self._given_up.add(number)

    def steps_inside_another(self, optimizer: Any) -> None:
        """This optimizer is driven by a wrapper, which is the one that counts."""
        self._given_up.add(self._names.optimizer(optimizer))

    def has_loaded(self, optimizer: Any) -> None:
        """An optimizer's state was loaded."""
        self._of(optimizer).loaded = True
        self.loaded(optimizer)

    def loaded(self, optimizer: Any) -> int | None:
        """Take the step count of an optimizer's state as the offset of a resumed run; returns it if it was taken."""
        steps = 0 if self._begun else _steps_in(optimizer)
        if steps and self._progress.resumed_at(steps):
            return steps
        return None

    def counts(self, optimizer: Any) -> bool:
        """Whether the update that just ended counts as a step of the training."""
        number = self._names.optimizer(optimizer)
        seen = self._of(optimizer)
        if not seen.steps:
            self._succeed(optimizer, seen)
        seen.steps += 1
        seen.steps_since_count += 1
        self._updates += 1
        seen.last_step = self._updates
        self._given_up.discard(number)
        chosen = self._chosen()
        if chosen != number and not self._of_number(chosen).steps and seen.steps_since_count >= IDLE_STEPS:
            self._given_up.add(chosen)
            chosen = self._chosen()
        self._begun |= chosen == number
        return chosen == number

    def awaits(self) -> bool:
        """Whether another optimizer is about to step in the iteration of the update that counts.

        One that has gradients for parameters of its own and has not stepped since the last window: bodies and embeddings,
        matrices and vectors. The window ends behind it, so that the order in which a program steps its optimizers is no
        difference in what a window holds.
        """
        return next(self._awaited(), None) is not None

    def window_ended(self, *, in_vain: bool) -> None:
        """A window has ended; ``in_vain``: although another optimizer was awaited, which is not waited for again."""
        if in_vain:
            for awaited in list(self._awaited()):
                awaited.awaited_in_vain = True
        for seen in self._seen.values():
            seen.steps_since_count = 0

    def _awaited(self) -> Iterator[_Seen]:
        chosen, optimizers = self._chosen(), list(self._names.optimizers())
        counting = next((optimizer for optimizer in optimizers if self._names.optimizer(optimizer) == chosen), None)
        for optimizer in optimizers if counting is not None else ():
            number = self._names.optimizer(optimizer)
            seen = self._of_number(number)
            if number == chosen or number in self._given_up or seen.steps_since_count or seen.awaited_in_vain:
                continue
            if not _share(counting, optimizer) and self._names.gradient_bytes(optimizer) > 0:
                yield seen

    def has_stepped(self, optimizer: Any) -> bool:
        """Whether it has stepped since the last window ended."""
        return self._of(optimizer).steps_since_count > 0

    def steps_of(self, optimizer: Any) -> int:
        """Updates seen of one optimizer, counted or not."""
        return self._of(optimizer).steps

    def _chosen(self) -> int:
        best, best_weight = -1, -1
        for optimizer in self._names.optimizers():
            number = self._names.optimizer(optimizer)
            if number in self._given_up:
                continue
            seen = self._of_number(number)
            weight = seen.gradient_bytes if seen.steps else _trainable_bytes(optimizer)
            if weight > best_weight:
                best, best_weight = number, weight
        return best

    def _of(self, optimizer: Any) -> _Seen:
        return self._of_number(self._names.optimizer(optimizer))

    def _of_number(self, number: int) -> _Seen:
        return self._seen.setdefault(number, _Seen(self._updates))


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    groups = optimizer.__dict__.get("param_groups") or ()
    return [p for group in groups for p in group["params"] if isinstance(p, torch.Tensor)]


def _trainable_bytes(optimizer: Any) -> int:
    return sum(p.numel() * p.element_size() for p in _parameters(optimizer) if p.requires_grad)


def _share(one: Any, other: Any) -> bool:
    """Two optimizers have a parameter in common."""
    return not {id(p) for p in _parameters(one)}.isdisjoint(id(p) for p in _parameters(other))


def _same_shapes(one: Any, other: Any) -> bool:
    """Two optimizers have parameters of the same shapes in the same order."""
    left, right = ([p.shape for p in _parameters(optimizer)] for optimizer in (one, other))
    return bool(left) and left == right


def _steps_in(optimizer: Any) -> int:
    """Largest ``step`` in an optimizer's state; 0 if none that can be one, or if reading it would wait for a device."""
    largest = 0
    for entries in (optimizer.__dict__.get("state") or {}).values():
        step = entries.get("step") if isinstance(entries, dict) else None
        if isinstance(step, torch.Tensor):
            step = _host_number(step)
        if isinstance(step, int | float) and 0 < step < MAX_STEPS:
            largest = max(largest, int(step))
    return largest


def _host_number(tensor: torch.Tensor) -> float | None:
    """A number in host memory, read where it lies: neither an operator nor a wait for a device; None for anything else."""
    kind = _HOST_NUMBERS.get(tensor.dtype)
    if kind is None or type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or not tensor.is_cpu or tensor.numel() != 1:
        return None
    if (tensor.storage_offset() + 1) * tensor.itemsize > tensor.untyped_storage().nbytes():
        return None  # its memory was given away
    number: float = kind.from_address(address_of(tensor)).value
    return number
