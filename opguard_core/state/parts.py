"""The parts of a training: how each is read, checked against what is there now, and put back.

`check` looks at everything before `apply` changes anything, so that a snapshot that does not fit changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from opguard_core.errors import StateUnsupported
from opguard_core.state.equality import same_bits
from opguard_core.state.streams import generator_state, set_generator

Value = dict[str, Any]
MAX_NAMED = 4


class Part(Protocol):
    """One object of the program."""

    name: str

    def collect(self) -> Value:
        """Its state now; tensors are not copied."""

    def check(self, value: Value) -> list[str]:
        """What does not fit, as sentences; changes nothing."""

    def apply(self, value: Value) -> None:
        """Put the state back."""


class ModelPart:
    """Parameters and buffers (those left out of `state_dict` too), training and requires_grad flags, gradients."""

    def __init__(self, name: str, module: torch.nn.Module, *, gradients: bool) -> None:
        """Remember the module."""
        self.name, self._module, self._gradients = name, module, gradients

    def collect(self) -> Value:
        """Its state now."""
        module = self._module
        state = dict(module.state_dict())
        parameters = dict(module.named_parameters(remove_duplicate=False))
        lazy = [name for name, tensor in self._tensors().items() if torch.nn.parameter.is_lazy(tensor)]
        if lazy:
            raise StateUnsupported(f"{self.name}.{lazy[0]} has no shape yet.", hint="Run a batch through the model first.")
        return {
            "class": type(module).__qualname__,
            "state": state,
            "unsaved": {name: tensor for name, tensor in self._tensors().items() if name not in state},
            "training": {name: child.training for name, child in module.named_modules()},
            "trained": {name: parameter.requires_grad for name, parameter in parameters.items()},
            "gradients": {name: p.grad for name, p in parameters.items() if p.grad is not None} if self._gradients else None,
            "shared": _sharing({**state, **parameters}),
        }

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, tied ones under each of theirs."""
        module = self._module
        return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}

    def check(self, value: Value) -> list[str]:
        """What does not fit."""
        here = self.collect()
        problems = _unequal_class(self.name, here, value) + _unequal_keys(f"{self.name}, its modules", here["training"], value["training"])
        for group in ("state", "unsaved"):
            problems += _unequal_keys(self.name, here[group], value[group])
            for key in here[group].keys() & value[group].keys():
                problems += _unequal_tensors(f"{self.name}.{key}", here[group][key], value[group][key])
        if value["shared"] != here["shared"]:
            problems.append(
                f"{self.name}: tensors that share memory: in the snapshot {value['shared'] or 'none'}, here {here['shared'] or 'none'}"
            )
        return problems

    def apply(self, value: Value) -> None:
        """Put the state back, into the memory that the parameters have now."""
        module = self._module
        module.load_state_dict(value["state"], strict=True)
        tensors = self._tensors()
        with torch.no_grad():
            for name, saved in value["unsaved"].items():
                if not same_bits(tensors[name], saved):
                    tensors[name].copy_(saved)
        for name, child in module.named_modules():
            child.training = value["training"].get(name, child.training)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(value["trained"].get(name, parameter.requires_grad))
            if value["gradients"] is not None:
                saved = value["gradients"].get(name)
                parameter.grad = None if saved is None else saved.to(parameter.device)


class OptimizerPart:
    """An optimizer's state and groups; knows its parameters by the models' names, so another order is refused.

    A parameter that is in none of the models is kept here.
    """

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, models: Mapping[str, torch.nn.Module]) -> None:
        """Remember the optimizer."""
        self.name, self._optimizer, self._models = name, optimizer, models

    def collect(self) -> Value:
        """Its state now."""
        names = {id(p): f"{at}.{key}" for at, module in self._models.items() for key, p in module.named_parameters()}
        groups = [[names.get(id(p), "") for p in group["params"]] for group in self._optimizer.param_groups]
        shapes = [[list(p.shape) for p in group["params"]] for group in self._optimizer.param_groups]
        state = self._optimizer.state_dict()
        flat = [name for group in groups for name in group]
        loose = {number: p for number, (p, name) in enumerate(zip(self._parameters(), flat, strict=True)) if not name}
        return {"class": type(self._optimizer).__qualname__, "names": groups, "shapes": shapes, "state": state, "loose": loose}

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def check(self, value: Value) -> list[str]:
        """What does not fit."""
        here = self.collect()
        problems = _unequal_class(self.name, here, value)
        if [len(group) for group in here["shapes"]] != [len(group) for group in value["shapes"]]:
            sizes = [[len(group) for group in side["shapes"]] for side in (value, here)]
            return [*problems, f"{self.name}: groups of {sizes[0]} parameters in the snapshot, of {sizes[1]} here"]
        for number, (there, now) in enumerate(zip(_flat(value), _flat(here), strict=True)):
            if there != now:
                was, is_now = (f"{name or 'unnamed'} {shape}" for name, shape in (there, now))
                problems.append(f"{self.name}: parameter {number} is {was} in the snapshot, {is_now} here")
        for number in here["loose"].keys() & value["loose"].keys():
            problems += _unequal_tensors(f"{self.name}, parameter {number}", here["loose"][number], value["loose"][number])
        return problems[:MAX_NAMED]

    def apply(self, value: Value) -> None:
        """Put the state back; a tensor that `load_state_dict` cast to its parameter's type is put back as it was."""
        optimizer = self._optimizer
        optimizer.load_state_dict(value["state"])
        order = self._parameters()
        with torch.no_grad():
            for number, saved in value["loose"].items():
                order[number].copy_(saved)
        for index, saved in value["state"].get("state", {}).items():
            if isinstance(index, int) and index < len(order) and order[index] in optimizer.state:
                optimizer.state[order[index]] = _uncast(optimizer.state[order[index]], saved)


class StatefulPart:
    """Any object with `state_dict` and `load_state_dict`: schedulers, scalers, averaged weights."""

    def __init__(self, name: str, holder: Any) -> None:
        """Remember the object.

        Raises:
            StateUnsupported: It lacks one of the two methods.
        """
        if not callable(getattr(holder, "state_dict", None)) or not callable(getattr(holder, "load_state_dict", None)):
            raise StateUnsupported(
                f"{name} is a {type(holder).__qualname__} without `state_dict` and `load_state_dict`.",
                hint="Plain values belong in `values`, generators in `generators`.",
            )
        self.name, self._holder = name, holder

    def collect(self) -> Value:
        """Its state now."""
        return {"class": type(self._holder).__qualname__, "state": self._holder.state_dict()}

    def check(self, value: Value) -> list[str]:
        """What does not fit."""
        return _unequal_class(self.name, {"class": type(self._holder).__qualname__}, value)

    def apply(self, value: Value) -> None:
        """Put the state back."""
        self._holder.load_state_dict(value["state"])


class GeneratorPart:
    """One generator object."""

    def __init__(self, name: str, generator: Any) -> None:
        """Remember the generator."""
        self.name, self._generator = name, generator

    def collect(self) -> Value:
        """Its state now."""
        return generator_state(self._generator, self.name)

    def check(self, value: Value) -> list[str]:
        """What does not fit."""
        here = self.collect()["kind"]
        return [] if here == value["kind"] else [f"{self.name} is a {here} generator here and a {value['kind']} one in the snapshot"]

    def apply(self, value: Value) -> None:
        """Put the state back."""
        set_generator(self._generator, value)


def _uncast(loaded: Any, saved: Any) -> Any:
    """What an optimizer holds after loading, with everything as it was that loading cast to the parameter's type."""
    if isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(saved, dict) and loaded.keys() == saved.keys():
        loaded.update({key: _uncast(item, saved[key]) for key, item in loaded.items()})
        return loaded
    if type(loaded) is type(saved) and isinstance(loaded, (list, tuple)) and len(loaded) == len(saved):
        return type(loaded)(map(_uncast, loaded, saved))
    return saved


def _sharing(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Names of parameters and buffers that begin at one address, sorted."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            key = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
            groups.setdefault(key, []).append(name)
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def _flat(value: Value) -> list[tuple[str, list[int]]]:
    return [pair for names, shapes in zip(value["names"], value["shapes"], strict=True) for pair in zip(names, shapes, strict=True)]


def _unequal_class(name: str, here: Value, there: Value) -> list[str]:
    return [] if here["class"] == there["class"] else [f"{name} is a {here['class']} here and a {there['class']} in the snapshot"]


def _unequal_keys(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    found = []
    for keys, where in ((there.keys() - here.keys(), "only in the snapshot"), (here.keys() - there.keys(), "only here")):
        if keys:
            more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
            found.append(f"{name}: {', '.join(sorted(map(str, keys))[:MAX_NAMED])}{more} {where}")
    return found


def _unequal_tensors(name: str, here: Any, there: Any) -> list[str]:
    if not isinstance(here, torch.Tensor) or not isinstance(there, torch.Tensor):
        return []
    one, other = (f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in (there, here))
    if one == other:  # kernels choose their path, and with it their rounding, by the strides of weights
        one, other = (f"{one} with strides {_strides(tensor)}" for tensor in (there, here))
    if here.device.type == "meta":
        other = f"{other} without memory"
    return [] if one == other else [f"{name} is {one} in the snapshot and {other} here"]


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides that matter: those of dimensions with more than one element."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1] if tensor.numel() else []
