"""Other names: of local variables, of functions and methods, of attributes of modules (and so of their parameters)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import libcst as cst
import numpy as np

from tests.variants.program import Inapplicable, Program
from tests.variants.tree import below, nodes

# What torch and the libraries of the cases call, or have as an attribute of something else.
_KNOWN = frozenset(
    """forward backward step zero_grad state_dict load_state_dict train eval setup_context compute_loss training_step main
    weight bias data grad shape dtype device training state param_groups eps lr model optimizer args path name names values keys items
    params parameters defaults config size index copy append update add get pop run clip reset save load close register_buffer
    apply state_steps dim scale mean std start join mode norm sum max count target join put""".split()
)
_DYNAMIC = {"locals", "vars", "eval", "exec", "globals"}


class _RenameEverywhere(cst.CSTTransformer):
    """Renames an identifier wherever it occurs, keywords of calls excepted."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self._names.get(updated_node.value, updated_node.value))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


class _Rename(_RenameEverywhere):
    """Renames variables: neither attributes nor what is imported."""

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_ImportAlias(self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias) -> cst.ImportAlias:
        return original_node


def locals_renamed(program: Program, rng: np.random.Generator) -> None:
    """Local variables of functions, and variables of modules that no other file knows, have other names."""
    count = 0
    for file, module in program.modules().items():
        module = _module_names(program, file, module, rng)
        changes: dict[int, dict[str, str]] = {}
        for function in _outermost(module):
            own = _own_names(function)
            names = {name: program.fresh(name) for name in [name for name in own if rng.random() < 0.7] or own[:1]}
            program.names.update({new: old for old, new in names.items()})
            changes[id(function)] = names
            count += len(names)
        program.files[file] = module.visit(_RenameFunctions(changes)).code
    if not count and not program.names:
        raise Inapplicable("no local variable")


class _RenameFunctions(cst.CSTTransformer):
    def __init__(self, changes: dict[int, dict[str, str]]) -> None:
        super().__init__()
        self._changes = changes

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> Any:
        names = self._changes.get(id(original_node))
        return updated_node.with_changes(body=updated_node.body.visit(_Rename(names))) if names else updated_node


def _outermost(node: cst.CSTNode) -> list[cst.FunctionDef]:
    """Functions that lie in no other function."""
    if isinstance(node, cst.FunctionDef):
        return [node]
    return [function for child in below(node) for function in _outermost(child)]


def _bound(node: cst.CSTNode) -> set[str]:
    """Names that assignments, loops, comprehensions and ``with`` bind anywhere below a node."""
    found: set[str] = set()
    places: list[Any] = [target.target for target in nodes(node, cst.AssignTarget)]
    places += [other.target for kind in (cst.For, cst.CompFor, cst.AugAssign, cst.AnnAssign, cst.NamedExpr) for other in nodes(node, kind)]
    places += [item.name for item in nodes(node, cst.AsName)]
    while places:
        place = places.pop()
        if isinstance(place, cst.Name):
            found.add(place.value)
        elif isinstance(place, cst.Tuple | cst.List):
            places += [element.value for element in place.elements]
        elif isinstance(place, cst.StarredElement):
            places.append(place.value)
    return found


def _own_names(function: cst.FunctionDef) -> list[str]:
    """Variables of a function that may be renamed throughout it, those of its inner functions included."""
    every = {name.value for name in nodes(function, cst.Name)}
    if every & _DYNAMIC or nodes(function.body, cst.ClassDef):
        return []
    taken = {parameter.name.value for parameter in nodes(function, cst.Param)}
    taken |= {item.name.value for kind in (cst.Global, cst.Nonlocal) for node in nodes(function, kind) for item in node.names}
    taken |= {name.value for alias in nodes(function, cst.ImportAlias) for name in nodes(alias, cst.Name)}
    taken |= {inner.name.value for inner in nodes(function.body, cst.FunctionDef)}
    return sorted(_bound(function.body) - taken)


def _module_names(program: Program, file: str, module: cst.Module, rng: np.random.Generator) -> cst.Module:
    """Rename variables of the module's top level that occur in no other file and in no function as something else."""
    top = cst.Module([line for line in module.body if not isinstance(line, cst.FunctionDef | cst.ClassDef)])
    taken = {parameter.name.value for parameter in nodes(module, cst.Param)}
    taken |= {name.value for alias in nodes(module, cst.ImportAlias) for name in nodes(alias, cst.Name)}
    taken |= {node.name.value for kind in (cst.FunctionDef, cst.ClassDef) for node in nodes(module, kind)}
    taken |= {name for cls in nodes(module, cst.ClassDef) for line in cls.body.body for name in _bound(line)}
    for function in nodes(module, cst.FunctionDef):
        shared = {item.name.value for node in nodes(function, cst.Global) for item in node.names}
        taken |= _bound(function) - shared
    others = " ".join(text for name, text in program.files.items() if name != file)
    if {name.value for name in nodes(module, cst.Name)} & _DYNAMIC:
        return module
    names = {}
    for name in sorted(_bound(top) - taken):
        if not name.startswith("__") and not re.search(rf"\b{name}\b", others) and rng.random() < 0.7:
            names[name] = program.fresh(name)
    program.names.update({new: old for old, new in names.items()})
    return module.visit(_Rename(names))


def functions_renamed(program: Program, rng: np.random.Generator) -> None:
    """Functions and methods have other names, in all files."""
    modules = program.modules()
    defined = {function.name.value for module in modules.values() for function in nodes(module, cst.FunctionDef)}
    taken = {parameter.name.value for module in modules.values() for parameter in nodes(module, cst.Param)}
    taken |= {name for module in modules.values() for name in _bound(module)}
    _rename(program, modules, sorted(defined - taken), rng)


def attributes_renamed(program: Program, rng: np.random.Generator) -> None:
    """Attributes that a constructor fills with what a call gives (layers, buffers, helpers) have other names."""
    modules = program.modules()
    found, taken = set(), {function.name.value for module in modules.values() for function in nodes(module, cst.FunctionDef)}
    for module in modules.values():
        taken |= _bound(module) & _KNOWN
        for assign in nodes(module, cst.Assign):
            target = assign.targets[0].target
            if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name) and target.value.value == "self":
                if isinstance(assign.value, cst.Call):
                    found.add(target.attr.value)
    _rename(program, modules, sorted(found - taken), rng, attributes=True)


def _rename(
    program: Program, modules: dict[str, cst.Module], candidates: Iterable[str], rng: np.random.Generator, *, attributes: bool = False
) -> None:
    strings = " ".join(
        node.value for module in modules.values() for kind in (cst.SimpleString, cst.FormattedStringText) for node in nodes(module, kind)
    )
    usable = [
        name
        for name in candidates
        if name not in _KNOWN and not name.startswith("__") and not re.search(rf"\b{re.escape(name)}\b", strings)
    ]
    if not usable:
        raise Inapplicable("no name that may change")
    chosen = [name for name in usable if rng.random() < 0.6] or [usable[int(rng.integers(len(usable)))]]
    names = {name: program.fresh(name) for name in chosen}
    program.names.update({new: old for old, new in names.items()})
    renamer: cst.CSTTransformer = _RenameAttributes(names) if attributes else _RenameEverywhere(names)
    for file, module in modules.items():
        program.files[file] = module.visit(renamer).code


class _RenameAttributes(cst.CSTTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        name = updated_node.attr.value
        return updated_node.with_changes(attr=cst.Name(self._names.get(name, name)))
