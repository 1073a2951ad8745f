"""Look at everything a comparison needs; each finding is a value with what to do about it, never an exception."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.fingerprint.native import NoNative, load
from opguard_harness.compare.folders import held_bytes
from opguard_harness.compare.interpreter import Interpreter, find, named, probe, refuse_foreign
from opguard_harness.config import MIN_FREE_BYTES, cache_dir, state_dir
from opguard_harness.doctor import devices
from opguard_harness.doctor.probe import foreign_owners

MCP_FROM, MCP_BEFORE = (2, 1), (3,)  # as pyproject.toml asks for
LARGE_BYTES = 20 << 30  # a state folder that is worth a word


@dataclass(frozen=True)
class Item:
    """One thing looked at. ``level``: "ok", "note" (works, but know this) or "fail" (a comparison will not start)."""

    name: str
    level: str
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """All findings; ``python`` is the interpreter that was checked, empty when there is none."""

    python: str
    items: list[Item]

    @property
    def ready(self) -> bool:
        """Whether a comparison would start."""
        return all(item.level != "fail" for item in self.items)


def examine(python: Path | None) -> Report:
    """Check this installation, the training Python, the compiler and the disk.

    Args:
        python: The training's interpreter; None looks for one as ``compare`` does.
    """
    interpreter, trouble = _interpreter(python)
    items = [_installation(), _mcp()]
    if trouble is not None:
        items.append(trouble)
    if interpreter is not None:
        items += _training_python(interpreter)
        found = devices.examine(str(interpreter.path), interpreter.facts, devices.cards())
        items += [Item(*one) for one in found]
    items += [_compiler(), *_disk()]
    return Report(str(interpreter.path) if interpreter else "", items)


def _interpreter(python: Path | None) -> tuple[Interpreter | None, Item | None]:
    """The interpreter to check, usable or not, and what is wrong when there is none."""
    try:
        return (probe(named(python)) if python else find(None)), None
    except OpGuardError as error:
        return None, Item("training python", "fail", error.message, error.as_dict()["fix"])


def _installation() -> Item:
    """That our own packages are ours: another distribution uses the same names."""
    try:
        refuse_foreign(foreign_owners(), sys.executable)
    except OpGuardError as error:
        return Item("installation", "fail", error.message, error.as_dict()["fix"])
    return Item("installation", "ok", f"opguard-mcp in {Path(__file__).resolve().parents[1]}.")


def _mcp() -> Item:
    """Whether the MCP server can start; the shell needs no SDK, so this never keeps a comparison from starting."""
    fix = f"Run: {sys.executable} -m pip install 'mcp>=2.1,<3'"
    try:
        version = metadata.version("mcp")
    except metadata.PackageNotFoundError:
        return Item("mcp", "note", "The MCP SDK is not installed, so `opguard-harness mcp` does not start; the shell works without.", fix)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not MCP_FROM <= numbers < MCP_BEFORE:
        return Item("mcp", "note", f"The MCP SDK has version {version}; the server needs 2.1 or later, before 3.", fix)
    return Item("mcp", "ok", f"mcp {version}.")


def _training_python(interpreter: Interpreter) -> Iterator[Item]:
    """Version, packages and tested pairs of the training's interpreter."""
    facts = interpreter.facts
    yield Item("training python", "ok", f"{facts['implementation']} {facts['version']} at {interpreter.path}.")
    try:
        refuse_foreign(facts["foreign"], str(interpreter.path))
    except OpGuardError as error:
        yield Item("foreign package", "fail", error.message, error.as_dict()["fix"])
    have = ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version)
    if interpreter.missing:
        yield Item("packages", "fail", f"It lacks {', '.join(interpreter.missing)}.", f"Run: {interpreter.install_line}")
    else:
        yield Item("packages", "ok", f"{have}.")
        untested = interpreter.untested()
        yield Item("tested pair", "note" if untested else "ok", untested or "This pair of Python and torch is tested.")
        yield _torch_starts(interpreter)


def _torch_starts(interpreter: Interpreter) -> Item:
    """That torch really imports there, in a process of its own, and which devices it sees."""
    code = "import torch; print(torch.__version__, torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    try:
        done = subprocess.run(
            [str(interpreter.path), "-c", f"import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; {code}"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Item("torch", "fail", "torch did not import within 300 s.", "Start the interpreter by hand and import torch.")
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:300]
        return Item("torch", "fail", f"torch does not import: {said}", f"Run: {interpreter.path} -m pip install --force-reinstall torch")
    version, devices = done.stdout.split()[-2:]
    return Item("torch", "ok", f"torch {version} imports; CUDA devices: {devices}.")


def _compiler() -> Item:
    """Whether the compiled fingerprint can be built here; without it numpy computes the same bits."""
    built = load()
    if isinstance(built, NoNative):
        text = f"Fingerprints are computed by numpy, the same bits, slower: {built.reason}."
        return Item("compiler", "note", text, "Install gcc or clang.")
    return Item("compiler", "ok", f"{built.compiler} builds the fingerprint ({built.path.name}).")


def _disk() -> Iterator[Item]:
    """Room for traces and private copies, and what our folders hold already."""
    for name, folder, smaller in (
        ("state folder", state_dir(), "`opguard-harness prune` says which results nobody relies on, and removes them with `--yes`."),
        ("cache folder", cache_dir(), "It may be removed while nothing runs: what is needed is built again."),
    ):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free, held = shutil.disk_usage(existing).free, held_bytes(folder)
        text = f"{folder}: holds {held / 2**20:.1f} MiB, {free / 2**30:.1f} GiB free."
        if not os.access(existing, os.W_OK):
            yield Item(name, "fail", f"{text} It may not be written.", "Set XDG_STATE_HOME and XDG_CACHE_HOME to folders of your own.")
        elif free < MIN_FREE_BYTES:
            yield Item(name, "fail", text, "Free some space, or set XDG_STATE_HOME and XDG_CACHE_HOME to a larger disk.")
        elif held > LARGE_BYTES:
            yield Item(name, "note", text, smaller)
        else:
            yield Item(name, "ok", text)
