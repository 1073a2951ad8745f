"""Write and read whole snapshots: gather the parts, check before changing, put back, look whether it is so.

objects -> parts -> tree (nodes, shared memory) -> container (one sealed file)
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opguard_core.errors import StateMismatch, StateNotRestored, StateUnsupported
from opguard_core.state import container
from opguard_core.state.equality import first_difference
from opguard_core.state.loader import ResumableLoader
from opguard_core.state.parts import GeneratorPart, ModelPart, OptimizerPart, Part, StatefulPart, Value
from opguard_core.state.streams import process_streams, set_process_streams, unobserved
from opguard_core.state.tree import Reader, Writer

Given = Any  # one object, a sequence of them, or a mapping of names to them
MAX_PROBLEMS = 6
# What an object's `load_state_dict` may raise at a state that it does not like.
_RAISED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Restored:
    """What a snapshot told besides what it put back.

    Attributes:
        values: The plain values given to `snapshot`.
        seal: Digest of the file, in hex.
        notes: What may keep the resumed run from being equal, as sentences: another torch, another machine.
    """

    values: dict[str, Any]
    seal: str
    notes: list[str] = field(default_factory=list)


class LoaderPart:
    """The position of a `ResumableLoader`."""

    def __init__(self, name: str, loader: Any) -> None:
        """Remember the loader.

        Raises:
            StateUnsupported: It knows no position.
        """
        if not isinstance(loader, ResumableLoader):
            hint = "Wrap it: `loader = state.ResumableLoader(loader)`, and iterate over that."
            raise StateUnsupported(f"{name} is a {type(loader).__qualname__}, which does not know where it is.", hint=hint)
        self.name, self._loader = name, loader

    def collect(self) -> Value:
        """Its position now."""
        return self._loader.state_dict()

    def check(self, value: Value) -> list[str]:
        """What does not fit."""
        return [f"{self.name}: {problem}" for problem in self._loader.misfits(value)]

    def apply(self, value: Value) -> None:
        """Take the position up."""
        self._loader.load_state_dict(value)


def snapshot(
    path: str | os.PathLike[str],
    *,
    model: Given = None,
    optimizer: Given = None,
    scheduler: Given = None,
    scaler: Given = None,
    loader: Given = None,
    generators: Given = None,
    extra: Given = None,
    values: Mapping[str, Any] | None = None,
    gradients: bool = True,
) -> str:
    """Write the state of a training to one file. Moves no random stream and changes nothing.

    Take it between two steps, in each rank to a file of its own. Each object may be one, a sequence, or a mapping of names.

    Args:
        path: File; replaced whole or not at all.
        model: Modules; parameters, buffers, training and requires_grad flags. Weights on any device.
        optimizer: Optimizers; parameters that are in none of the modules are kept with them.
        scheduler: Learning rate schedulers.
        scaler: Gradient scalers.
        loader: `ResumableLoader`s.
        generators: Generator objects of torch, numpy or Python that the program draws from. Those of this process (torch,
            CUDA, numpy, Python) and those of the loaders come by themselves.
        extra: Anything else with `state_dict` and `load_state_dict`: averaged weights, samplers, metrics.
        values: Plain values that `restore` gives back: step, epoch, arguments.
        gradients: Keep gradients that exist. Needed in the middle of an accumulation; costs their size.

    Returns:
        The seal: sha256 over the file, in hex.

    Raises:
        StateUnsupported: Something cannot be kept without pickle; the message says where it stands.
        StateError: The file cannot be written.

    Cost: device memory is copied to the host once; the file is digested, written and synced.
    """
    parts = _parts(model, optimizer, scheduler, scaler, loader, generators, extra, gradients=gradients)
    collected = [(part.name, part.collect()) for part in parts]
    writer = Writer()
    with unobserved():
        try:
            document = {
                "facts": _facts(),
                "streams": writer.node(process_streams(), "streams"),
                "values": writer.node(dict(values or {}), "values"),
                "parts": {name: writer.node(value, name) for name, value in collected},
            }
            return container.write(Path(path), document, writer.entries())
        except RecursionError as error:
            raise StateUnsupported("A value holds itself, or lies in too many others, which a snapshot cannot hold.") from error


def restore(
    path: str | os.PathLike[str],
    *,
    model: Given = None,
    optimizer: Given = None,
    scheduler: Given = None,
    scaler: Given = None,
    loader: Given = None,
    generators: Given = None,
    extra: Given = None,
) -> Restored:
    """Put the state of a training back, bit for bit. Give the same objects as to `snapshot`, built as they were then.

    Everything is checked before anything is changed, and looked at again afterwards.

    Args:
        path: File that `snapshot` wrote.
        model: As for `snapshot`; parameters keep their memory, so optimizers and tied weights stay what they are.
        optimizer: As for `snapshot`.
        scheduler: As for `snapshot`.
        scaler: As for `snapshot`.
        loader: As for `snapshot`; the next iteration goes on where the position was.
        generators: As for `snapshot`.
        extra: As for `snapshot`.

    Raises:
        StateDamaged: The file is not what was written, or of a newer release.
        StateMismatch: The objects are not those of the snapshot. Nothing was changed.
        StateNotRestored: An object does not hold what it was given. Do not train on.

    Cost: reads the file once, and everything that was put back once more.
    """
    parts = {part.name: part for part in _parts(model, optimizer, scheduler, scaler, loader, generators, extra, gradients=True)}
    document, storages, seal = container.read(Path(path))
    reader = Reader(storages)
    saved = {name: reader.value(node) for name, node in document.get("parts", {}).items()}
    streams, values = reader.value(document.get("streams")), reader.value(document.get("values"))
    problems = [f"only in the snapshot: {name}" for name in saved if name not in parts]
    problems += [f"not in the snapshot: {name}" for name in parts if name not in saved]
    problems += [problem for name, part in parts.items() if name in saved for problem in part.check(saved[name])]
    problems += [
        f"{key} was {was} and is {now}"
        for key, was, now in _changed(document, ("rank", "world_size"))
        if was is not None and now is not None
    ]
    if problems:
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise StateMismatch(f"{path} does not fit what it is restored into: {'; '.join(problems[:MAX_PROBLEMS])}{more}.")
    for name, part in parts.items():
        try:
            part.apply(reader.value(document["parts"][name]))  # of its own: some objects take apart what they are given
        except _RAISED as error:
            raise StateNotRestored(f"{name} could not be put back: {type(error).__name__}: {error}.") from error
    set_process_streams(streams)
    _look_again(parts, saved, streams)
    notes = [
        f"{key} was {was} when the snapshot was taken and is {now}." for key, was, now in _changed(document, ("torch", "python", "machine"))
    ]
    return Restored(values, seal, notes)


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a snapshot says of itself: facts, plain values, names of its parts. Reads the header only; nothing is verified."""
    document, _, seal = container.read(Path(path), data=False)
    try:
        values = Reader({}).value(document.get("values"))
    except StateUnsupported:
        values = None
    return {"facts": document.get("facts"), "values": values, "parts": sorted(document.get("parts", {})), "seal": seal}


def _parts(
    model: Given, optimizer: Given, scheduler: Given, scaler: Given, loader: Given, generators: Given, extra: Given, *, gradients: bool
) -> list[Part]:
    """One part an object, in the order in which they are put back."""
    models = dict(_named("model", model))
    parts: list[Part] = [ModelPart(name, module, gradients=gradients) for name, module in models.items()]
    parts += [OptimizerPart(name, one, models) for name, one in _named("optimizer", optimizer)]
    for kind, given in (("scheduler", scheduler), ("scaler", scaler), ("extra", extra)):
        parts += [StatefulPart(name, holder) for name, holder in _named(kind, given)]
    parts += [LoaderPart(name, one) for name, one in _named("loader", loader)]
    parts += [GeneratorPart(name, one) for name, one in _named("generators", generators)]
    names = [part.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StateUnsupported(f"Two objects are called {twice}.", hint="Give each a name of its own.")
    return parts


def _named(kind: str, given: Given) -> Iterable[tuple[str, Any]]:
    if given is None:
        return ()
    if isinstance(given, Mapping) and not isinstance(given, torch.nn.Module):
        return [(f"{kind}.{name}", item) for name, item in given.items()]
    if isinstance(given, (list, tuple)):
        return [(f"{kind}.{index}", item) for index, item in enumerate(given)]
    return [(kind, given)]


def _look_again(parts: Mapping[str, Part], saved: Mapping[str, Value], streams: Value) -> None:
    """Raise unless everything holds what it was given."""
    for name, part in parts.items():
        value, now = saved[name], part.collect()
        if value.get("gradients", 0) is None:
            now = {**now, "gradients": None}
        found = first_difference(value, now, name)
        if found:
            raise StateNotRestored(f"{found} is not what the snapshot holds after it was restored.")
    now = process_streams()
    found = first_difference(streams, {key: now.get(key) for key in streams}, "random streams")
    if found:
        raise StateNotRestored(f"{found} is not what the snapshot holds after it was restored.")


def _facts() -> dict[str, Any]:
    distributed: Any = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rank": None if distributed is None else distributed.get_rank(),
        "world_size": None if distributed is None else distributed.get_world_size(),
    }


def _changed(document: Mapping[str, Any], keys: Iterable[str]) -> list[tuple[str, Any, Any]]:
    here, there = _facts(), document.get("facts") or {}
    return [(key, there.get(key), here[key]) for key in keys if there.get(key) != here[key]]
