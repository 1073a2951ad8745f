"""The rules one server or shell runs under, and the check of every argument by its role.

Roots prevent mistakes; they are no sandbox: a training is arbitrary code with the user's rights. Each path is checked when a
call names it, and again where it is used (``current().path``), since stored answers name paths as well and links change.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_harness.access.commands import DEFAULT, check_command
from opguard_harness.access.paths import absolute, followed, holder, read_below, read_plain
from opguard_harness.access.traces import trace_folder
from opguard_harness.access.untrusted import one_line
from opguard_harness.access.variables import check_variables, module_folders
from opguard_harness.config import state_dir
from opguard_harness.errors import CommandRefused, InvalidArguments, OutsideRoots, ToolNotOffered
from opguard_harness.interface.declaration import GROUPS, Role, Tool, roles_of


@dataclass(frozen=True)
class Access:
    """What calls may touch.

    Attributes:
        roots: Folders that sides, scripts and files must lie in; None for no limit (a shell has its user's rights anyway).
        commands: Programs that may stand first in a command line: bare names, or absolute paths.
        read_only: Offer only tools that change nothing.
        groups: Groups of tools that are offered.
        python: Training Python of calls that name none; empty looks for one.
    """

    roots: tuple[Path, ...] | None = None
    commands: tuple[str, ...] = DEFAULT
    read_only: bool = False
    groups: tuple[str, ...] = GROUPS
    python: str = ""

    def __post_init__(self) -> None:
        """Follow the links of the roots once, at the start: a root that becomes a link later leads nowhere."""
        if self.roots is not None:
            object.__setattr__(self, "roots", tuple(followed(Path(root).absolute(), "root") for root in self.roots))

    def offers(self, tool: Tool) -> bool:
        """Whether that tool may be called."""
        return tool.group in self.groups and (tool.read_only or not self.read_only)

    def require(self, tool: Tool) -> None:
        """Refuse a tool that is not offered.

        Raises:
            ToolNotOffered: The server was started without it.
        """
        if not self.offers(tool):
            how = "with --read-only" if self.read_only and not tool.read_only else f"without the group {tool.group!r}"
            raise ToolNotOffered(f"{tool.name} is not offered: this server was started {how}.")

    def admit(self, tool: Tool, arguments: Any) -> Any:
        """Check each argument by its role; returns the arguments dataclass with paths made absolute.

        Raises:
            OutsideRoots: A path leaves the roots.
            PathRefused: No file can have that path.
            CommandRefused: A command line starts something that is not on the list.
            VariableRefused: A variable would load code or redirect a program.
            InvalidArguments: A side that has to be named is empty.
        """
        roles = roles_of(tool.arguments)
        values = {name: getattr(arguments, name) for name in roles}
        for item in dataclasses.fields(arguments):
            if roles[item.name] is Role.SIDE and not values[item.name] and item.default is dataclasses.MISSING:
                raise InvalidArguments(f"{tool.name}: {item.name}: it is empty and names no folder; the root itself is `.`.")
        admitted = {name: self._admitted(value, name, roles[name]) for name, value in values.items()}
        named = [_place(text) for name, role in roles.items() if role is Role.SIDE for text in _texts(admitted[name]) if text]
        folders = [_folder(path) for path in named]
        modules: list[Path] = []
        for name, role in roles.items():
            if role is Role.VARIABLES:
                check_variables(values[name], name, lambda entry: all(self._holds(folder / entry) for folder in folders or self._bases))
                modules += [folder / entry for entry in module_folders(values[name]) for folder in folders or self._bases]
        for name, role in roles.items():
            if role is Role.COMMAND and values[name]:
                check_command(
                    values[name],
                    commands=(*self.commands, self.python) if self.python else self.commands,
                    folders=[_folder(path) for path in named if trace_folder(path) is None],
                    inside=self._holds,
                    module_folders=modules,
                )
        return dataclasses.replace(arguments, **admitted)

    def path(self, text: str | Path, what: str = "path") -> Path:
        """Where a path leads, if a call may go there; to be asked again wherever a stored path is used.

        Args:
            text: A path; under roots a relative one starts at the first root.
            what: What messages call it.

        Returns:
            The absolute path; under roots, with all links followed.

        Raises:
            OutsideRoots: It lies neither in a root nor in the state folder.
            PathRefused: No file can have that path.
        """
        path = absolute(str(text), what, self.roots[0] if self.roots else None)
        if self.roots is None:
            return path
        real = followed(path, what)
        if self._holder(real) is None:
            known = ", ".join(str(root) for root in self.roots[:4])
            raise OutsideRoots(f"{what}: {one_line(str(text), 120)!r} leads out of the folders that may be touched ({known}).")
        return real

    def output(self, text: str | Path, what: str = "path") -> Path:
        """Where a file may be written: under roots only in the state folder, so that nothing of the user's is changed.

        Raises:
            OutsideRoots: It lies elsewhere.
        """
        path = self.path(text, what)
        if self.roots is not None and holder(path, [_state()]) is None:
            raise OutsideRoots(
                f"{what}: {one_line(str(text), 120)!r} does not lie in the state folder, and nothing is written elsewhere.",
                hint="Leave the argument out: the state folder has a file for it. A shell may write to any file.",
            )
        return path

    def read(self, text: str | Path, what: str, limit_bytes: int) -> bytes:
        """Read a small file whole, below a descriptor of its root and through no link that was put there after the check.

        Raises:
            OutsideRoots: It lies elsewhere, or something on the way has become a link.
            PathRefused: It is no regular file, or too large.
            OSError: It is not there, or cannot be read.
        """
        path = self.path(text, what)
        root = self._holder(path)
        return read_plain(path, what, limit_bytes) if root is None else read_below(root, path, what, limit_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the process that carries a job out."""
        return {**dataclasses.asdict(self), "roots": None if self.roots is None else [str(root) for root in self.roots]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Access:
        """The rules that ``to_dict`` wrote."""
        roots = values["roots"]
        return cls(
            roots=None if roots is None else tuple(Path(root) for root in roots),
            commands=tuple(values["commands"]),
            read_only=bool(values["read_only"]),
            groups=tuple(values["groups"]),
            python=str(values["python"]),
        )

    @property
    def _bases(self) -> tuple[Path, ...]:
        return self.roots or (Path.cwd(),)

    def _holder(self, real: Path) -> Path | None:
        """The root or state folder that a path with all links followed lies in."""
        return holder(real, [*(self.roots or ()), _state()])

    def _holds(self, path: Path) -> bool:
        """Whether a path, links followed, may be touched."""
        return self.roots is None or self._holder(followed(path, "path")) is not None

    def _admitted(self, value: Any, name: str, role: Role) -> Any:
        """One argument, paths absolute; what is empty names nothing and stays so."""
        if isinstance(value, list):
            return [self._admitted(item, name, role) for item in value] if role in (Role.SIDE, Role.STORED, Role.FILE) else value
        if role is Role.PYTHON:
            return self._interpreter(value, name) if value else self.python
        if not value or role not in (Role.SIDE, Role.STORED, Role.FILE):
            return value
        if role is not Role.FILE and _ID.fullmatch(value):
            for folder in ("runs", "jobs", "cases"):
                if os.path.lexists(state_dir() / folder / value):
                    self.path(state_dir() / folder / value, name)
                    return value
            if role is Role.STORED and not (self._bases[0] / value).exists():
                return value  # the tool says which ids there are
        return str(self.path(value, name))

    def _interpreter(self, text: str, name: str) -> str:
        """An interpreter that may be started: under roots one of the list, by its name or its very path."""
        if "/" not in text:
            program, shown = text, one_line(text, 60)
        else:
            path = absolute(text, name, self._bases[0])
            program, shown = str(path), one_line(text, 120)
        if self.roots is not None and program not in (*self.commands, self.python):
            known = ", ".join(command for command in self.commands if "python" in command)
            raise CommandRefused(
                f"{name}: {shown!r} is not an interpreter that this server may start ({known}).",
                hint="Leave the argument out, or have the server started with --allow-command PATH.",
            )
        return program


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,119}")


def _state() -> Path:
    """The state folder, links followed."""
    return followed(state_dir(), "state folder")


def _texts(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def _place(named: str) -> Path:
    """Where a side lies that is a path by now, or the id of something stored."""
    path = Path(named)
    return path if path.is_absolute() else state_dir() / "runs" / named


def _folder(path: Path) -> Path:
    """The working folder of a side."""
    return path.parent if path.is_file() else path


_current: ContextVar[Access] = ContextVar("access", default=Access())  # noqa: B039 - frozen


def current() -> Access:
    """The rules of the call that is being carried out; without any, those of a shell."""
    return _current.get()


@contextmanager
def using(access: Access) -> Iterator[None]:
    """Carry a call out under these rules."""
    token = _current.set(access)
    try:
        yield
    finally:
        _current.reset(token)
