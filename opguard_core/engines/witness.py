"""Facts for the contract about what the program makes and loads: loaders, checkpoint files, state dicts, autocast regions.

Called by the hooks, inside the user's step: a failure is an unknown fact with its reason, never an exception. Reads only.

What it cannot see: files read by other means than ``torch.load`` and ``safetensors.torch.load_file`` (safetensors' own ``safe_open``,
numpy); their weights show in ``load.*`` where they pass through `load_state_dict`, and else in the trace.
"""

from __future__ import annotations

import hashlib
import io
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from opguard_core.determinism.facts import RankFacts
from opguard_core.determinism.objects import dtype_facts, loader_facts, replica_facts
from opguard_core.determinism.readers import autocast_policies
from opguard_core.determinism.streams import fact
from opguard_core.engines.quiet import quiet
from opguard_core.fingerprint.digest import Digests
from opguard_core.probe.promise import PATIENCE_S, TOGETHER, Known, Promise, settle
from opguard_core.probe.tensor import Unreadable, fingerprint

MAX_LOADERS = 8
MAX_LOADS = 16
MAX_POLICIES = 16
MAX_PARTS = 256  # tensors of a state that are told by name; of a larger one the digest of all is
MAX_NAME = 120
WHOLE_FILE_BYTES = 1 << 30  # larger files are digested in samples
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 20
_COMPILE_OPTIONS = ("backend", "dynamic", "fullgraph", "mode", "options")


class Witness:
    """Notes facts of one rank.

    Args:
        facts: Where they go.
    """

    def __init__(self, facts: RankFacts) -> None:
        self._facts = facts
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._num_loaders = self._num_files = self._num_loads = 0
        self._policies: set[str] = set()
        self._compiled: set[str] = set()
        self._forward = self._updated = False

    def enter_module(self, module: Any, *, root: bool) -> None:
        """A module is called for training, before the first update. Cost: 0.2 us; some 50 us at the first root."""
        if self._updated:
            return
        found = fact(lambda: autocast_policies(torch))
        for policy in found if isinstance(found, list) else ():
            if len(self._policies) < MAX_POLICIES:
                self._policies.add(policy)
        if root and not self._forward:
            self._forward = True
            self._facts.forward()
            self._note("ddp", lambda: replica_facts(module))

    def before_first_update(self, optimizer: Any) -> None:
        """The first optimizer step begins."""
        self._updated = True
        if self._forward:
            self._facts.note({"autocast.ran": sorted(self._policies)})
        self._note("dtype", lambda: dtype_facts(optimizer))
        self._facts.late("first optimizer step")

    def enter_loader(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A DataLoader makes an iterator; noted once for each loader, in the order of first use."""
        loader = args[0]
        if loader in self._loaders or self._num_loaders >= MAX_LOADERS:
            return
        number, self._num_loaders = self._num_loaders, self._num_loaders + 1
        self._loaders.add(loader)
        self._note(f"loader.{number}", lambda: {f"loader.{number}.{key}": value for key, value in loader_facts(loader).items()})

    def enter_compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``torch.compile`` is called; each way to call it is noted once."""
        given = {name: kwargs[name] for name in _COMPILE_OPTIONS if kwargs.get(name) is not None}
        text = " ".join(f"{name}={_plain_text(value)}" for name, value in sorted(given.items())) or "as by default"
        if not kwargs.get("disable") and len(self._compiled) < MAX_POLICIES:
            self._compiled.add(text)
            self._facts.note({"compile.declared": sorted(self._compiled)})

    def enter_file(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``torch.load`` or ``load_file`` is called with a path or a file. Cost: reads the file once, up to 1 GiB of it."""
        source = args[0] if args else kwargs.get("f", kwargs.get("filename"))
        if self._num_files < MAX_LOADS:
            number, self._num_files = self._num_files, self._num_files + 1
            self._note(f"checkpoint.{number}.digest", lambda: _file_facts(source, f"checkpoint.{number}"))

    def enter_load(self, receiver: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``load_state_dict`` is called. Cost: reads every tensor of the state once."""
        state = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if self._num_loads < MAX_LOADS:
            number, self._num_loads = self._num_loads, self._num_loads + 1
            loaded = _Loaded(f"load.{number}", type(receiver).__name__)
            self._note(f"load.{number}.digest", lambda: loaded.look_at(state))
            if loaded.outstanding:
                self._facts.later(loaded.facts, loaded.wait)

    def _note(self, key: str, read: Any) -> None:
        found = fact(read)
        self._facts.note(found if isinstance(found, dict) and "unknown" not in found else {key: found})


def _plain_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain_text(value[key])}" for key in sorted(value, key=str)) + "}"
    return str(value) if isinstance(value, (bool, int, float, str)) else getattr(value, "__qualname__", type(value).__qualname__)


def _file_facts(source: Any, key: str) -> dict[str, object]:
    """Digest and size of what is about to be loaded; a file object is read without moving its position."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
    elif isinstance(source, io.BytesIO):
        with source.getbuffer() as view:
            return {f"{key}.digest": hashlib.sha256(view).hexdigest(), f"{key}.bytes": view.nbytes, f"{key}.file": "memory"}
    elif isinstance(getattr(source, "name", None), str) and isinstance(source, (io.BufferedReader, io.FileIO)):
        path = Path(source.name)
    else:
        return {f"{key}.digest": {"unknown": f"a {type(source).__name__} cannot be read without moving it"}}
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        total = hashlib.sha256()
        if size <= WHOLE_FILE_BYTES:
            while chunk := stream.read(1 << 22):
                total.update(chunk)
            text = total.hexdigest()
        else:
            for index in range(_SAMPLES):
                stream.seek(index * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                total.update(stream.read(_SAMPLE_BYTES))
            text = f"{_SAMPLES} samples of 1 MiB: {total.hexdigest()}"
    return {f"{key}.digest": text, f"{key}.bytes": size, f"{key}.file": path.name}


class _Loaded:
    """Digest of the tensors of a state dict, whatever they are called and in whatever order they come.

    Those on a device that would have to be waited for come later: until then the digest is unknown.
    """

    def __init__(self, key: str, into: str) -> None:
        self._key, self._into = key, into
        self._found: list[tuple[str, torch.dtype, tuple[int, ...], Known | Unreadable]] = []

    def look_at(self, state: Any) -> dict[str, object]:
        """Have every tensor digested; the facts as far as they are known."""
        with quiet(), TOGETHER:
            for name, tensor in _tensors(state):
                self._found.append((name, tensor.dtype, tuple(tensor.shape), fingerprint(tensor)))
        return self.facts() or {f"{self._key}.digest": {"unknown": "its tensors are on a device that has not answered yet"}}

    @property
    def outstanding(self) -> bool:
        """Whether a digest is still on its way."""
        return any(isinstance(known, Promise) and known.look() is None for *_, known in self._found)

    def wait(self) -> None:
        """At the end of a capture: wait for what is outstanding. A device that says nothing more is waited for once."""
        patience_s = PATIENCE_S
        for *_, known in self._found:
            if isinstance(known, Promise) and known.look() is None and isinstance(settle(known, patience_s), Unreadable):
                patience_s = 0.0

    def facts(self) -> dict[str, object] | None:
        """The facts; None while a digest is on its way."""
        if self.outstanding:
            return None
        key, lines = self._key, []
        parts: dict[str, str] = {}
        for name, dtype, shape, known in self._found:
            digests = known.look() if isinstance(known, Promise) else known
            if not isinstance(digests, Digests):
                continue
            lines.append(f"{digests.mix64:016x} {dtype} {shape}")
            parts[name] = f"{str(dtype).removeprefix('torch.')} {list(shape)} {digests.mix64:016x}"
        text = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        facts: dict[str, object] = {f"{key}.digest": text, f"{key}.tensors": len(self._found), f"{key}.into": self._into}
        if len(self._found) <= MAX_PARTS:
            facts[f"{key}.parts"] = parts
        unread = len(self._found) - len(lines)
        return {**facts, f"{key}.unread": unread} if unread else facts


def _tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of nested containers, each with the keys that lead to it."""
    open_values = [("", value)]
    while open_values:
        name, one = open_values.pop()
        if isinstance(one, torch.Tensor):
            yield name, one
        elif isinstance(one, dict):
            open_values += [(_below(name, key), item) for key, item in dict.items(one)]
        elif type(one) in (list, tuple):
            open_values += [(_below(name, at), item) for at, item in enumerate(one)]


def _below(name: str, key: object) -> str:
    own = key[:MAX_NAME] if type(key) is str else str(key) if type(key) is int else type(key).__name__
    return f"{name}.{own}" if name else own
