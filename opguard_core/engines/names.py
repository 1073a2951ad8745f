"""Names: which module is running, which storage is which parameter, gradient, buffer or optimizer state.

Reads the plain dictionaries of ``nn.Module`` and calls no method that a program may have overridden. Holds weak references
only.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from opguard_core.engines.kinds import is_plain
from opguard_core.engines.quiet import quiet
from opguard_core.engines.storages import Storages

# Wrappers whose child is the program's own model: their level gets no name, so wrapped and bare models agree.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "AveragedModel": "module",
}


NOTED_MODULES = 4096  # modules noted before those that are gone are forgotten


class Named(NamedTuple):
    """A tensor the program owns, weakly held."""

    reference: weakref.ReferenceType[torch.Tensor]
    name: str


class Names:
    """Names of one rank's modules and state.

    Args:
        storages: They get the names of the state they hold.
        label: False if nobody looks at storages; then none is met for the sake of a name.
    """

    def __init__(self, storages: Storages, *, label: bool = True) -> None:
        self._storages, self._labels = storages, label
        self._paths: dict[int, tuple[weakref.ReferenceType[Any], str]] = {}
        self._roots: dict[int, weakref.ReferenceType[Any]] = {}
        self._prefixes: set[str] = set()
        self._parameters: dict[int, Named] = {}
        self._buffers: dict[int, Named] = {}
        self._optimizers: list[weakref.ReferenceType[Any]] = []
        self._noted: list[weakref.ReferenceType[Any]] = []
        self._prune_at = NOTED_MODULES
        # In a native session what C++ knows of these tables (`observer/names.h`); they are handed over when they have changed.
        self.book: Any = None
        self._changed = True

    # Modules.

    def path(self, module: Any, root: Any, above: str) -> str:
        """Path of a running module.

        Args:
            module: The module being called.
            root: The outermost module being called (``module`` itself when nothing else is open).
            above: Path of the module that calls it.

        Cost: one dictionary look-up once known; the first call of a root walks its tree.
        """
        known = self._paths.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        if not any(module.__dict__.get(table) for table in ("_parameters", "_buffers", "_modules")):
            # Made on the spot (`nn.Softmax(-1)(x)`), perhaps in every call: not worth a walk of the tree.
            return _join(above, type(module).__name__)
        with quiet():
            self._adopt(root)
        known = self._paths.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        # Called by its parent without being registered in it.
        path = _join(above, type(module).__name__)
        self._paths[id(module)] = (weakref.ref(module), path)
        self._changed = True
        return path

    def _adopt(self, root: Any) -> None:
        """Name a root and everything registered below it."""
        entry = self._paths.get(id(root))
        prefix = entry[1] if entry is not None and entry[0]() is root else self._prefix_of(root)
        fresh = []
        for path, module in _walk(root, prefix):
            self._paths[id(module)] = (weakref.ref(module), path)
            fresh.append((path, module))
        for path, module in fresh:
            for key, parameter in (module.__dict__.get("_parameters") or {}).items():
                if parameter is not None:
                    self._name(self._parameters, parameter, _join(path, key))
            for key, buffer in (module.__dict__.get("_buffers") or {}).items():
                if isinstance(buffer, torch.Tensor):
                    self._buffers.pop(id(buffer), None)
                    self._buffers[id(buffer)] = Named(weakref.ref(buffer), _join(path, key))
        self._roots[id(root)] = weakref.ref(root)
        self._changed = True
        self.refresh()

    def note(self, module: Any) -> None:
        """Remember a module that was copied or loaded: an averaged copy of a model is state although nobody calls it."""
        if len(self._noted) >= self._prune_at:
            self._noted = [reference for reference in self._noted if reference() is not None]
            self._prune_at = max(NOTED_MODULES, 2 * len(self._noted))
        self._noted.append(weakref.ref(module))

    def adopt_noted(self) -> None:
        """Name what was noted and is still there, unless a call has named it meanwhile. Cost: nothing when nothing was noted."""
        noted, self._noted = self._noted, []
        modules = []
        for reference in noted:
            module = reference()
            known = None if module is None else self._paths.get(id(module))
            if module is not None and (known is None or known[0]() is not module):
                modules.append(module)
        inner: set[int] = set()
        for module in modules:
            if id(module) not in inner:
                inner.update(id(below) for _, below in _walk(module, "") if below is not module)
        for module in modules:
            if id(module) not in inner and any(
                below.__dict__.get("_parameters") or below.__dict__.get("_buffers") for _, below in _walk(module, "")
            ):
                self._adopt(module)

    def _prefix_of(self, root: Any) -> str:
        """The first root that owns parameters has no prefix; others carry their class, numbered when met again."""
        owns = any(module.__dict__.get("_parameters") for _, module in _walk(root, ""))
        if owns and "" not in self._prefixes:
            self._prefixes.add("")
            return ""
        base = type(root).__name__
        if not owns:
            return base  # losses and activations: nothing below that could be mixed up
        prefix, number = base, 1
        while prefix in self._prefixes:
            number += 1
            prefix = f"{base}#{number}"
        self._prefixes.add(prefix)
        return prefix

    def _name(self, table: dict[int, Named], tensor: torch.Tensor, name: str) -> None:
        known = table.get(id(tensor))
        # A tied parameter keeps its first name; one that was named by its place in an optimizer gets its real one.
        gone = known is not None and known.reference() is not tensor
        if gone:
            table.pop(id(tensor), None)  # else this one would take the place in the order that belonged to another at its address
        if known is None or gone or known.name.startswith("optimizer"):
            table[id(tensor)] = Named(weakref.ref(tensor), name)
            self._changed = True

    # Optimizers.

    def optimizer(self, optimizer: Any) -> int:
        """Number of an optimizer, by order of first sight."""
        for number, reference in enumerate(self._optimizers):
            if reference() is optimizer:
                return number
        self._optimizers.append(weakref.ref(optimizer))
        return len(self._optimizers) - 1

    def adopt_parameters(self, optimizer: Any) -> None:
        """Name parameters that no module called so far has named."""
        if self.book is not None and not self._changed and self.book.all_named(optimizer):
            return
        number = self.optimizer(optimizer)
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                known = self._parameters.get(id(parameter))
                if (known is None or known.reference() is not parameter) and isinstance(parameter, torch.Tensor):
                    self._name(self._parameters, parameter, f"optimizer{number}.{group_index}.{index}")

    def name_of(self, parameter: torch.Tensor) -> str:
        """Name of a parameter, "" if unknown."""
        known = self._parameters.get(id(parameter))
        return known.name if known is not None and known.reference() is parameter else ""

    # State.

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Living parameters in order of naming."""
        return self._living(self._parameters)

    def living_parameters(self) -> list[torch.Tensor]:
        """As `parameters`, without the names. Cost: 0.1 us a parameter."""
        living = [parameter for reference, _ in list(self._parameters.values()) if (parameter := reference()) is not None]
        if len(living) != len(self._parameters):
            for _ in self.parameters():
                pass  # those that are gone are forgotten
        return living

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Living buffers, read from the modules: buffers are often replaced rather than written."""
        for reference, path in list(self._paths.values()):
            module = reference()
            if module is None:
                continue
            for key, buffer in (module.__dict__.get("_buffers") or {}).items():
                if isinstance(buffer, torch.Tensor):
                    yield _join(path, key), buffer

    def optimizers(self) -> Iterator[Any]:
        """Living optimizers, in order of first sight."""
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    @staticmethod
    def _living(table: dict[int, Named]) -> Iterator[tuple[str, torch.Tensor]]:
        for key, (reference, name) in list(table.items()):
            tensor = reference()
            if tensor is None:
                table.pop(key, None)
            else:
                yield name, tensor

    def optimizer_state(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        """Entries of an optimizer's state as (name, value), in the order of its parameters."""
        number = self.optimizer(optimizer)
        for group_index, index, parameter, entries in _entries(optimizer):
            name = self.name_of(parameter) or f"optimizer{number}.{group_index}.{index}"
            for key, value in entries.items():
                if isinstance(key, str):
                    yield f"{name}.{key}", value

    @staticmethod
    def optimizer_values(optimizer: Any) -> list[Any]:
        """As `optimizer_state`, without the names. Cost: 0.1 us a value."""
        state = optimizer.__dict__.get("state") or {}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found: Iterable[Any]
        if len(state) == len(parameters) and all(map(operator.is_, state, parameters)):  # as a rule; a look-up calls the tensor's hash
            found = state.values()
        else:
            found = [entries for *_, entries in _entries(optimizer)]
        return [value for entries in found if isinstance(entries, dict) for key, value in entries.items() if isinstance(key, str)]

    def refresh(self) -> None:
        """Give storages the names of the state they hold now. Cost: about 5 us a parameter, 0.3 us in C++."""
        if not self._labels:
            return
        if self.book is not None:
            self._hand_over()
            self.book.refresh()
            return
        for name, parameter in self.parameters():
            self._label(parameter, f"param:{name}")
            gradient = parameter.grad if parameter.is_leaf else None
            if gradient is not None:
                self._label(gradient, f"grad:{name}", gradient=True)
        for name, buffer in self.buffers():
            self._label(buffer, f"buffer:{name}")

    def refresh_optimizer(self, optimizer: Any) -> None:
        """As `refresh`, for the state of one optimizer."""
        if not self._labels:
            return
        if self.book is not None:
            self._hand_over()
            self.book.refresh_optimizer(optimizer, self.optimizer(optimizer))
            return
        for name, value in self.optimizer_state(optimizer):
            if isinstance(value, torch.Tensor):
                self._label(value, f"optim:{name}")

    def forget_unseen(self, optimizer: Any, since: int) -> None:
        """An optimizer's step has ended: what it holds and nobody was seen writing since a tick is not believed to be as it was.

        An extension's optimizer writes its parameters in C++, and no operator, version counter or hook says so.
        """
        if self._labels:
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]] + self.optimizer_values(optimizer)
            self._storages.forget_unseen([tensor for tensor in held if isinstance(tensor, torch.Tensor)], since)

    def fill(self, rows: Any, number_row: Callable[[int, str, float], Any]) -> None:
        """Add the slots of a state event to the rows that `book` made.

        Args:
            rows: Of `StateRows`.
            number_row: Makes the row of a number of an optimizer's state: (seq, slot, number).
        """
        self.adopt_noted()
        self._hand_over()
        self.book.fill(rows, [(optimizer, self.optimizer(optimizer)) for optimizer in self.optimizers()], number_row)

    def settled(self) -> None:
        """Nobody has questions to a model any more: calls of modules that are known need not be told to Python."""
        if self.book is not None:
            self.book.settled = True

    def gradient_bytes(self, optimizer: Any) -> int:
        """Bytes of the gradients that an optimizer is about to use."""
        if self.book is not None:
            return int(self.book.gradient_bytes(optimizer))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if isinstance(parameter, torch.Tensor) and parameter.is_leaf]
        return sum(gradient.numel() * gradient.element_size() for gradient in gradients if gradient is not None)

    def _hand_over(self) -> None:
        if self._changed:
            self._changed = False
            for _ in self.parameters():
                pass  # those that are gone are forgotten
            self.book.set(list(self._parameters.values()), list(self._paths.values()))

    def _label(self, tensor: torch.Tensor, name: str, *, gradient: bool = False) -> None:
        if not is_plain(tensor):
            return
        record = self._storages.of(tensor, self._storages.seq)
        # Flat buffers (FSDP, DDP buckets) hold many: the first name stands.
        if not record.name or record.name.partition(":")[0] != name.partition(":")[0]:
            record.name = name
        record.gradient = record.gradient or gradient


def _entries(optimizer: Any) -> Iterator[tuple[int, int, torch.Tensor, dict[Any, Any]]]:
    """Group, place in it, parameter and state of each parameter of an optimizer that has any."""
    state = optimizer.__dict__.get("state") or {}
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            entries = state.get(parameter) if isinstance(parameter, torch.Tensor) else None
            if isinstance(entries, dict):
                yield group_index, index, parameter, entries


def _walk(root: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Modules below a root with their paths, each once."""
    seen: set[int] = set()
    open_modules = [(prefix, root)]
    while open_modules:
        path, module = open_modules.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = module.__dict__.get("_modules") or {}
        hidden = _WRAPPERS.get(type(module).__name__, "_orig_mod")
        open_modules += [
            (path if key == hidden else _join(path, key), child) for key, child in reversed(children.items()) if child is not None
        ]


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
