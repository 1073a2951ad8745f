"""What a module that Inductor generated says of itself: its kernels, what each reads and writes, and where it launches them.

Read from the module's text alone, so that it is the same for code compiled just now and code from a cache, and for torch's own names
(``in_ptr0``, ``out_ptr1``, ``in_out_ptr0``) as for those of templates. Standard library only; nothing is executed.

What it cannot see: what kernels do that are written in C++ as a whole (``cpp_wrapper``), and the bodies of library functions.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

CPP, TRITON = "cpp", "triton"
_BINDERS = {"cpp_pybinding": CPP, "triton": TRITON}
_CHOICE = "multi_kernel"
_BOUND = re.compile(r"^\w+ = async_compile\.(\w+)\(", re.MULTILINE)
_CPP_HEAD = re.compile(r"\bkernel\s*\(([^)]*)\)")
_CPP_PARAMETER = re.compile(r"^(?P<const>const\s+)?(?P<type>[\w:<>\s]+?)\s*(?P<pointer>\*)?\s*(?:__restrict__\s+)?(?P<name>\w+)$")
_ALLOCATIONS = re.compile(r"^empty_strided\w*$")
_SOURCE_NODES = re.compile(r"# (?:Topologically Sorted |Unsorted )?Source Nodes: \[(?P<nodes>[^\]]*)\]")
# The same code at another place, or compiled as another number of the process. Source: torch/_inductor/codegen/wrapper.py, codecache.py.
_COMMENT = re.compile(r"^\s*#\s.*$", re.MULTILINE)
_PATH = re.compile(r"[^\s'\"<>()\[\]]*[/\\](?=[^\s'\"/\\<>()\[\]]*)")
_MAIN = re.compile(r"^if __name__ == .*\Z", re.MULTILINE | re.DOTALL)
_WORKSPACE = ("ws_ptr", "sem_ptr", "workspace", "seed_offset")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: As the kernel calls it.
        is_read: Whether the kernel may read what was there before; None: its text does not tell.
        is_written: Whether it may write there; None: its text does not tell.
        is_scratch: Memory for the kernel alone.
    """

    name: str
    is_read: bool | None = True
    is_written: bool | None = False
    is_scratch: bool = False


@dataclass(frozen=True)
class Kernel:
    """One generated kernel.

    Attributes:
        name: Global of the module that is called.
        kind: `CPP` or `TRITON`.
        parameters: Those that a caller passes, in order.
        digest: Of its text, wherever it lies and whatever it is called.
    """

    name: str
    kind: str
    parameters: tuple[Parameter, ...]
    digest: str


@dataclass
class Launch:
    """One line of the module that launches a kernel.

    Attributes:
        kernel: Its name.
        line: 1-based.
        occurrence: Which of the launches of that kernel it is in the module, 0-based.
        whole: Positions of arguments that are made by this launch: nothing of theirs was written before.
    """

    kernel: str
    line: int
    occurrence: int
    whole: frozenset[int] = frozenset()


@dataclass
class Generated:
    """One generated module.

    Attributes:
        kernels: By name.
        launches: By line.
        source_nodes: Names that Inductor wrote above a line of the module, by line.
        digest: Of the code, without what depends on where and when it was compiled.
        in_cpp: Whether all of it is one C++ function, so that no single launch can be seen.
        others: Kinds of kernel that it binds and that we cannot observe.
    """

    kernels: dict[str, Kernel] = field(default_factory=dict)
    launches: dict[int, Launch] = field(default_factory=dict)
    source_nodes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    digest: str = ""
    in_cpp: bool = False
    others: tuple[str, ...] = ()


def read(text: str) -> Generated:
    """Read the text of a generated module.

    Raises:
        SyntaxError: It is no Python.

    Cost: some milliseconds, as parsing it.
    """
    tree = ast.parse(text)
    found = Generated(digest=digest_of(text), in_cpp=is_in_cpp(text))
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            kernel = _bound(node.targets[0].id, node.value) or _chosen(node.targets[0].id, node.value, found.kernels)
            if kernel is not None:
                found.kernels[kernel.name] = kernel
    found.others = tuple(sorted({*_BOUND.findall(text)} - {*_BINDERS, _CHOICE, "wait"}))
    lines = text.splitlines()
    for function in _functions(tree):
        _Function(found, lines).read(function)
    found.source_nodes = dict(_comments(lines))
    return found


def digest_of(text: str) -> str:
    """sha256 of code, without comments, paths and the number it was compiled under."""
    text = _MAIN.sub("", text)
    text = _COMMENT.sub("", text)
    text = _PATH.sub("", text)
    return hashlib.sha256("\n".join(line.rstrip() for line in text.splitlines() if line.strip()).encode()).hexdigest()


def is_in_cpp(text: str) -> bool:
    """Whether a generated module is one C++ function."""
    return "CppWrapperCodeCache" in text


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in ("get_args", "benchmark_compiled_module"):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (one for one in node.body if isinstance(one, ast.FunctionDef))


def _bound(name: str, value: ast.expr) -> Kernel | None:
    """The kernel that ``async_compile.<kind>(...)`` binds to a global of the module; None: it is something else."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return None
    kind = _BINDERS.get(value.func.attr)
    texts = [one.value for one in value.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if kind is None or not texts:
        return None
    source = texts[-1]
    parameters = _cpp_parameters(source) if kind == CPP else _triton_parameters(source)
    return Kernel(name, kind, tuple(parameters), digest_of(source.replace(name, "kernel")))


def _chosen(name: str, value: ast.expr, kernels: dict[str, Kernel]) -> Kernel | None:
    """A global that launches whichever of several kernels is fastest: they take the same arguments."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == _CHOICE):
        return None
    named = [kernels[one.id] for one in ast.walk(value) if isinstance(one, ast.Name) and one.id in kernels]
    if not named:
        return None
    return Kernel(name, named[0].kind, named[0].parameters, digest_of("".join(one.digest for one in named)))


def _cpp_parameters(source: str) -> Iterator[Parameter]:
    """``const`` tells what is only read; of the rest, what is read before it is written has a second name for its old content."""
    head = _CPP_HEAD.search(source)
    for text in head.group(1).split(",") if head else ():
        parts = _CPP_PARAMETER.match(" ".join(text.split()))
        if parts is None:
            yield Parameter(text.strip(), None, None)
            continue
        name = parts["name"]
        if not parts["pointer"] or parts["const"]:
            yield Parameter(name)
            continue
        yield Parameter(name, _cpp_reads(source[head.end() :] if head else "", name), True)


def _cpp_reads(body: str, name: str) -> bool:
    """Whether a kernel looks at what was in memory that it writes: its first use is no store, or adds to what is there."""
    first = re.search(rf"\b{name}\b(?!;)", body)
    if re.search(rf"\bauto in_ptr\d+ = {name};|\batomic_\w+\(\s*&?{name}\b", body) or first is None:
        return first is not None
    line = body[body.rfind("\n", 0, first.start()) + 1 : body.find("\n", first.start())]
    return not re.match(rf"\s*(?:{name}\s*\[.*\]\s*=(?!=)|[\w.<>:,\s]*\bstore\(\s*{name}\b)", line)


def _triton_parameters(source: str) -> Iterator[Parameter]:
    """What Inductor itself says is written in place, and the names it gives; a kernel that the user wrote has names of its own."""
    try:
        tree = ast.parse(source.strip() if source.startswith(" ") else source)
    except SyntaxError:
        return
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_jit(node)]
    if not functions:
        return
    function = max(functions, key=lambda node: len(node.decorator_list))  # functions that it calls are decorated with ``jit`` alone
    names = [one.arg for one in function.args.args if not _is_constexpr(one.annotation)]
    changed = _mutated(function)
    is_generated = any(name.startswith(("in_ptr", "out_ptr", "in_out_ptr", "arg_")) for name in names)
    body = ast.get_source_segment(source, function) or source
    for name in names:
        if name.startswith(_WORKSPACE):
            yield Parameter(name, False, True, is_scratch=True)
        elif not is_generated:
            yield Parameter(name, True, None)
        elif name.startswith(("in_out_ptr", "out_ptr")):
            yield Parameter(name, _triton_reads(body, name), True)
        else:
            yield Parameter(name, True, name in changed)


def _triton_reads(body: str, name: str) -> bool:
    """As `_cpp_reads`."""
    first = re.search(rf"\btl\.(load|store|atomic_\w+)\(\s*{name}\b", body)
    return first is not None and first.group(1) != "store"


def _is_jit(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "jit" for one in node.decorator_list)


def _is_constexpr(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Attribute) and annotation.attr == "constexpr"


def _mutated(function: ast.FunctionDef) -> frozenset[str]:
    """``inductor_meta['mutated_arg_names']`` of the kernel's decorator."""
    for decorator in function.decorator_list:
        for given in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if given.arg == "inductor_meta" and isinstance(given.value, ast.Dict):
                for key, value in zip(given.value.keys, given.value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "mutated_arg_names":
                        return frozenset(
                            one.value for one in ast.walk(value) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                        )
    return frozenset()


class _Function:
    """Follows the buffers of one function of the module by their names: a new name is memory of which nothing counts yet."""

    def __init__(self, found: Generated, lines: list[str]) -> None:
        self._found, self._lines = found, lines
        self._new: set[str] = set()

    def read(self, function: ast.FunctionDef) -> None:
        """Note each launch of the function."""
        for statement in _statements(function.body):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
                self._assigned(statement.targets[0].id, statement)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._called(statement.value)

    def _assigned(self, name: str, statement: ast.Assign) -> None:
        value = statement.value
        reused = "# reuse" in self._lines[statement.lineno - 1]
        made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and _ALLOCATIONS.match(value.func.id)
        aliased = _buffer(value)
        if made or reused or (aliased is not None and aliased in self._new):
            self._new.add(name)
        else:
            self._new.discard(name)
            if isinstance(value, ast.Call) and aliased is None:
                self._used(value)

    def _called(self, call: ast.Call) -> None:
        name = _launched(call.func)
        kernel = self._found.kernels.get(name or "")
        if kernel is not None:
            whole = frozenset(index for index, one in enumerate(call.args) if _buffer(one) in self._new)
            number = sum(one.kernel == kernel.name for one in self._found.launches.values())
            self._found.launches[call.lineno] = Launch(kernel.name, call.lineno, number, whole)
        self._used(call)

    def _used(self, call: ast.Call) -> None:
        """Whatever is handed over may have been written from now on."""
        self._new.difference_update(one.id for one in ast.walk(call) if isinstance(one, ast.Name))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))


def _launched(function: ast.expr) -> str | None:
    """``kernel(...)`` or ``kernel.run(...)``."""
    if isinstance(function, ast.Attribute) and function.attr == "run":
        function = function.value
    return function.id if isinstance(function, ast.Name) else None


def _buffer(value: ast.expr) -> str | None:
    """The buffer that an argument is, or is a view of."""
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("reinterpret_tensor", "alloc_from_pool")
        and value.args
    ):
        value = value.args[0]
    return value.id if isinstance(value, ast.Name) else None


def _comments(lines: list[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The next line of code after each comment that names source nodes."""
    nodes: tuple[str, ...] = ()
    for number, line in enumerate(lines, 1):
        told = _SOURCE_NODES.search(line)
        if told:
            nodes = tuple(name.strip() for name in told["nodes"].split(",") if name.strip())
        elif (
            nodes
            and "(" in line
            and not line.lstrip().startswith(("#", "assert_", "del "))
            and not re.search(r"= (?:empty_strided|reinterpret_tensor|get_raw_stream)", line)
        ):
            yield number, nodes
            nodes = ()
