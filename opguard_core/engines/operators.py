"""What to do with one operator: its schema read once, kept as a plan.

A plan says which arguments are tensors (also inside lists), which of them are written, which results are new, which plain
values belong into the canonical text, and whether the operator is a boundary at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch

from opguard_core.engines import tables
from opguard_core.engines.canonical import DROPPED_ARGUMENTS, argument_text
from opguard_core.engines.kinds import is_plain
from opguard_core.engines.shims import own
from opguard_core.ids import Kind

_LISTS = ("List[", "Optional[List[")
_REFUSED = "Expected a value of type 'Tensor"
_WRAPPED = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}


class Handling(Enum):
    """How the engine treats an operator."""

    EVENT = "event"
    COLLECTIVE = "collective"
    WAIT = "wait"
    VIEW = "view"  # no event; may create an autograd node
    METADATA = "metadata"  # no event; may change what a tensor points to
    DROP = "drop"  # bookkeeping of torch itself


class TensorArgument(NamedTuple):
    """One schema argument that holds tensors.

    Attributes:
        position: Place in the schema.
        name: Name in the schema.
        path: Slot path of its pre-probe, "in.0" or "kw.mask"; a list adds ".<position>".
        written_path: Slot path of its post-probe, "mut.0" or "mut.mask".
        nested: Whether the argument is a list (or a list of lists).
        reads: False if the old bytes are no input (``out=``, ``copy_``).
        writes: Whether the operator writes it.
        when: Name of the bool argument that must be true for an undeclared write, or "".
        declared: Whether the schema says that it is written (then autograd bumps the version counter afterwards).
    """

    position: int
    name: str
    path: str
    written_path: str
    nested: bool
    reads: bool
    writes: bool
    when: str
    declared: bool

    def each(self, value: Any, *, written: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Slot path and tensor of each tensor the caller gave (a number in its place is none)."""
        path = self.written_path if written else self.path
        if isinstance(value, torch.Tensor):
            yield path, value
        elif self.nested:
            yield from _items(path, value)


def _items(path: str, values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            yield f"{path}.{index}", value
        elif isinstance(value, list | tuple):
            yield from _items(f"{path}.{index}", value)


class PlainArgument(NamedTuple):
    """One schema argument without tensors, and its text when the caller leaves it out."""

    position: int
    name: str
    default_text: str


class OperatorPlan:
    """The schema of one operator overload, digested for the hot path."""

    __slots__ = (
        "call",
        "composite",
        "garbage",
        "handling",
        "has_own_kernels",
        "kind",
        "makes_nodes_to_leave_alone",
        "native",
        "non_blocking",
        "open",
        "operator",
        "plain",
        "qualified",
        "random",
        "resizes",
        "returns",
        "shape_only",
        "single",
        "tensors",
        "trusted",
        "uninitialised",
        "written",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.call = func._op
        self.qualified: str = schema.name
        namespace, _, base = schema.name.partition("::")
        self.native = namespace in ("aten", "prims", "prim", "profiler")  # kernels in C++
        self.operator = f"{namespace}.{base}.{func._overloadname}"
        self.composite = func._can_decompose() and not any(
            torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in ("CPU", "CUDA", "CompositeExplicitAutograd")
        )
        self.has_own_kernels = self.composite and any(
            torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in tables.SPECIAL_BACKENDS
        )
        self.open = _opened(func)
        self.random = torch.Tag.nondeterministic_seeded in func.tags or any(str(a.type) == "Optional[Generator]" for a in schema.arguments)
        self.makes_nodes_to_leave_alone = self.qualified in tables.MAKE_NODES_CHANGED_BY_MODES and (
            self.qualified == "aten::prod" or "Tensor" in func._overloadname
        )
        self.resizes = self.qualified in tables.RESIZES
        self.uninitialised = self.qualified in tables.UNINITIALISED_RESULTS
        self.shape_only = self.uninitialised or self.qualified in tables.SHAPE_ONLY
        self.garbage = tables.GARBAGE_RESULTS.get(self.qualified, frozenset())
        self.trusted = False  # set by the engine from the allowlist
        self.tensors, self.plain = _arguments(func, schema)
        self.written = tuple(a for a in self.tensors if a.writes)
        self.non_blocking = next((i for i, a in enumerate(schema.arguments) if a.name == "non_blocking"), None)
        # Results that alias an input are the written argument (or a view of it), not new tensors.
        # c10d returns the very lists it wrote, without saying so.
        returns: Any = () if namespace == "c10d" else enumerate(schema.returns)
        self.returns = tuple(i for i, r in returns if r.alias_info is None and "Tensor" in str(r.type))
        self.single = len(schema.returns) == 1
        self.handling = self._handling(func, schema, namespace)
        self.kind = self._kind()

    def _handling(self, func: Any, schema: Any, namespace: str) -> Handling:
        if namespace in tables.DROPPED_NAMESPACES:
            return Handling.DROP
        if self.qualified in tables.METADATA or getattr(torch.Tag, "inplace_view", None) in func.tags:
            return Handling.METADATA
        if self.qualified in tables.WAITS:
            return Handling.WAIT
        if namespace in tables.COLLECTIVE_NAMESPACES:
            return Handling.COLLECTIVE
        if self.qualified in tables.READS or self.qualified in tables.CHECKS:
            return Handling.EVENT
        if func.is_view:
            return Handling.VIEW
        writes = any(a.writes for a in self.tensors)
        makes_tensors = any("Tensor" in str(r.type) for r in schema.returns)
        if namespace == "aten" and not writes and not makes_tensors:
            return Handling.METADATA
        return Handling.EVENT

    def _kind(self) -> str:
        if self.handling in (Handling.COLLECTIVE, Handling.WAIT):
            return Kind.COLLECTIVE.value
        if self.qualified in tables.READS:
            return Kind.READ.value
        return Kind.OPERATOR.value

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Canonical text of the non-tensor arguments, schema defaults filled in.

        Cost: about 0.3 us an argument.
        """
        parts = []
        given = len(args)
        for index, name, default_text in self.plain:
            if index < given:
                value = args[index]
            elif name in kwargs:
                value = kwargs[name]
            else:
                if default_text:
                    parts.append(default_text)
                continue
            # A Tensor position: only a number there is a plain argument.
            if not default_text and (value is None or isinstance(value, torch.Tensor)):
                continue
            parts.append(argument_text(name, value))
        return ";".join(parts)

    def results(self, result: Any) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Position, slot path and tensor of each new tensor among the results."""
        for position in self.returns:
            value = result if self.single else result[position]
            if isinstance(value, torch.Tensor):
                yield position, f"out.{position}", value
            elif isinstance(value, list | tuple):
                for path, tensor in _items(f"out.{position}", value):
                    yield position, path, tensor

    def arguments_read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """Slot path and tensor of each argument."""
        for argument in self.tensors:
            value = self.value(argument, args, kwargs)
            if value is not None:
                yield from argument.each(value)

    def is_asynchronous(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the caller said that a copy need not be there when the call returns (``non_blocking``)."""
        position = self.non_blocking
        if position is None:
            return False
        return bool(args[position] if len(args) > position else kwargs.get("non_blocking"))

    def reaches_host_later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether what this call puts into host memory is on its way from a device when the call returns."""
        return self.is_asynchronous(args, kwargs) and any(not tensor.is_cpu for _, tensor in self.arguments_read(args, kwargs))

    def made(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Slot path and tensor of each new result, and of each argument that the call has written."""
        for _, path, tensor in self.results(result):
            yield path, tensor
        for _, path, tensor in self.writes(args, kwargs):
            yield path, tensor

    def left(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """As `made`, and arguments that the call may have written without saying so."""
        for path, tensor in self.arguments_read(args, kwargs):
            yield f"mut.{path.partition('.')[2]}", tensor
        yield from self.made(args, kwargs, result)

    def is_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a composite runs as one kernel for what it got (a nested or sparse tensor), not as the operators inside."""
        if not self.has_own_kernels:
            return False
        given = [self.value(argument, args, kwargs) for argument in self.tensors]
        flat = [item for value in given for item in (value if isinstance(value, (list, tuple)) else (value,))]
        return any(isinstance(item, torch.Tensor) and not is_plain(item) for item in flat)

    def value(self, argument: TensorArgument, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the caller gave for one argument, None if nothing."""
        return args[argument.position] if argument.position < len(args) else kwargs.get(argument.name)

    def writes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[bool, str, torch.Tensor]]:
        """For each tensor this call writes in place: whether the schema says so, slot path, tensor."""
        for argument in self.written:
            if argument.when and not self.flag(argument.when, args, kwargs):
                continue
            value = self.value(argument, args, kwargs)
            if value is not None:
                for path, tensor in argument.each(value, written=True):
                    yield argument.declared, path, tensor

    def flag(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the bool argument ``name`` is true in this call."""
        for index, candidate, _ in self.plain:
            if candidate == name:
                return bool(args[index] if index < len(args) else kwargs.get(name))
        return False


def _arguments(func: Any, schema: Any) -> tuple[tuple[TensorArgument, ...], tuple[PlainArgument, ...]]:
    undeclared = tables.UNDECLARED_WRITES.get(schema.name)
    overwrites = schema.name in tables.OVERWRITES
    tensors, plain = [], []
    for index, argument in enumerate(schema.arguments):
        kind, name = str(argument.type), argument.name
        if "Tensor" in kind:
            declared = argument.alias_info is not None and argument.alias_info.is_write
            hidden = undeclared is not None and name in undeclared.arguments
            only = (hidden and undeclared is not None and undeclared.only) or (
                declared and (overwrites or (argument.kwarg_only and getattr(torch.Tag, "out", None) in func.tags))
            )
            position = name if argument.kwarg_only else str(index)
            tensors.append(
                TensorArgument(
                    index,
                    name,
                    f"{'kw' if argument.kwarg_only else 'in'}.{position}",
                    f"mut.{position}",
                    kind.startswith(_LISTS),
                    not only,
                    declared or hidden,
                    undeclared.when if hidden and undeclared is not None else "",
                    declared,
                )
            )
        if name in DROPPED_ARGUMENTS:
            continue
        default = argument_text(name, argument.default_value) if argument.has_default_value() else f"{name}=?"
        if "Tensor" not in kind:
            plain.append(PlainArgument(index, name, default))
        elif not kind.startswith(_LISTS):
            plain.append(PlainArgument(index, name, ""))  # a number in its place is an argument, see `arguments`
    return tuple(tensors), tuple(plain)


def _opened(func: Any) -> Any:
    """Runs a composite operator as the operators inside it, by the formula in C++ that a bare run takes where there is one.

    torch's own `decompose` prefers formulas in Python, which cannot do all that those in C++ can.
    """
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite):
        return func.decompose
    return partial(func._op_dk, composite)


@own
def call_with_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator again that was refused for a number where it wants a tensor; every other error goes on its way.

    A tensor that C++ has made of a number (compiled autograd hands scalars over so) reaches a mode as that number, and only some
    operators take a number for a tensor. The refusal comes before anything of the call has run, unless a function in Python was called
    with such a number and an operator inside it refused another one. Call it while the error is handled.
    """
    if _REFUSED not in str(sys.exc_info()[1]) or not isinstance(func, torch._ops.OpOverload):
        raise
    schema = func._schema.arguments
    given = [
        torch.tensor(value, dtype=_WRAPPED[type(value)], device="cpu")
        if type(value) in _WRAPPED and str(argument.type) == "Tensor"
        else value
        for argument, value in zip(schema, args, strict=False)
    ]
    if all(one is other for one, other in zip(given, args, strict=True)):
        raise
    return func(*given, **kwargs)


class OperatorPlans:
    """Plans by operator overload; made at first sight."""

    def __init__(self, trusted: frozenset[str]) -> None:
        self._plans: dict[Any, OperatorPlan] = {}
        self._trusted = trusted

    def of(self, func: Any) -> OperatorPlan | None:
        """The plan of ``func``, None for a higher-order operator. Cost: one dictionary look-up after the first call."""
        plan = self._plans.get(func)
        if plan is None and isinstance(func, torch._ops.OpOverload):
            plan = OperatorPlan(func)
            plan.trusted = plan.qualified in self._trusted and plan.handling is Handling.EVENT
            self._plans[func] = plan
        return plan

    def unreadable(self, func: Any) -> OperatorPlan:
        """The plan of an operator whose schema we failed to take apart: it runs as it is."""
        plan = OperatorPlan.__new__(OperatorPlan)
        plan.call, plan.handling = func, Handling.DROP
        plan.composite = plan.has_own_kernels = plan.native = False
        self._plans[func] = plan
        return plan
