"""The way from a recipe to a file: look in the cache, take one's turn, compile, rename into place, open."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from opguard_core.builds import compilers, folder, lock
from opguard_core.builds.recipe import Built, NotBuilt, Recipe

QUIET_S = 2.0  # a build that takes longer says so
_SHOWN = 300  # characters of what the compiler said
_BASE = ("-fPIC", "-shared")


def obtain(recipe: Recipe, open_with: Callable[[Path], Any] | None = None) -> Built | NotBuilt:
    """The built file, from the cache or built now.

    Args:
        recipe: What to build.
        open_with: Loads the file; what it returns becomes ``Built.opened``. If it raises OSError or ImportError, the next flags or the
            next compiler are tried.

    Returns:
        The file, or the reason why there is none: OPGUARD_NO_COMPILER is set, no compiler, no private folder, every build failed.

    Cost: about 0.1 ms when built before; else a run of the compiler in a child process, once per node. A launcher that calls
        ``prepare`` before it starts the ranks spares them the wait.
    """
    if os.environ.get("OPGUARD_NO_COMPILER"):
        return NotBuilt("OPGUARD_NO_COMPILER is set")
    commands = compilers.find_compilers(recipe.language)
    if not commands:
        return NotBuilt(compilers.none_found(recipe.language))
    try:
        place = folder.private_folder()
    except OSError as error:
        return NotBuilt(f"{_words(recipe)} has no private folder to live in: {error}")
    failures = []
    for command in commands:
        for tuning in recipe.tunings:
            try:
                return build_and_open(recipe, command, tuning, place, open_with)
            except (OSError, ImportError, subprocess.SubprocessError) as error:
                failures.append(f"{shlex.join([*command, *tuning])}: {_told(error)[:_SHOWN]}")
    return NotBuilt(f"no {recipe.language.upper()} compiler could build {_words(recipe)}: " + "; ".join(dict.fromkeys(failures)))


def _told(error: Exception) -> str:
    """Why a build failed, without the command that may be longer than all that is shown."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"timed out after {error.timeout:.3g} s"
    return str(getattr(error, "stderr", None) or error).strip()


def prepare(recipes: Iterable[Recipe | NotBuilt]) -> dict[str, Built | NotBuilt]:
    """Build what is missing before the ranks of a training start: no compiler in their processes, no two at once.

    Args:
        recipes: In order; a recipe that could not even be written down is passed on.

    Returns:
        By name, what came of each.
    """
    return {recipe.name: obtain(recipe) for recipe in recipes if isinstance(recipe, Recipe)}


def build_and_open(
    recipe: Recipe, compiler: list[str], tuning: tuple[str, ...], place: Path, open_with: Callable[[Path], Any] | None = None
) -> Built:
    """The file for this compiler and these flags, built now unless ``place`` has it.

    Raises:
        OSError: It cannot be written, loaded or trusted.
        ImportError: ``open_with`` refused it.
        subprocess.SubprocessError: The compiler failed or took too long.
    """
    flags = (*_BASE, *recipe.flags, *tuning)
    key = _key(recipe, compiler, flags)
    path = folder.find(place, recipe.name, key) or _in_turn(recipe, compiler, flags, place, key)
    return Built(path, shlex.join(compiler), flags, None if open_with is None else open_with(path))


def load_extension(name: str, path: Path) -> ModuleType:
    """Import the extension module ``name`` from a built file, for ``open_with``.

    Raises:
        ImportError: It is not one, or a symbol is missing.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _key(recipe: Recipe, compiler: list[str], flags: tuple[str, ...]) -> str:
    key = hashlib.sha256(recipe.content())
    facts = (recipe.language, compilers.identity(compiler), *flags, *recipe.libraries, *recipe.facts, compilers.machine())
    key.update("\0".join(facts).encode())
    return key.hexdigest()[:32]


def _in_turn(recipe: Recipe, compiler: list[str], flags: tuple[str, ...], place: Path, key: str) -> Path:
    said = False

    def waiting(seconds: float) -> None:
        nonlocal said
        if seconds > QUIET_S and not said:
            said = True
            _say(f"waiting for another process that builds {_words(recipe)}")

    with lock.turn(place / f".{recipe.name}-{key}.lock", recipe.seconds, waiting) as ours:
        found = folder.find(place, recipe.name, key)  # by whoever had the turn before
        if found is not None:
            return found
        if ours.failure:
            raise subprocess.SubprocessError(ours.failure)
        try:
            return _build(recipe, compiler, flags, place, key)
        except (OSError, subprocess.SubprocessError) as error:
            ours.failed(_told(error)[: 4 * _SHOWN])
            raise


def _build(recipe: Recipe, compiler: list[str], flags: tuple[str, ...], place: Path, key: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{recipe.name}-", suffix=".tmp", dir=place)
    os.close(descriptor)
    scratch = Path(name)
    try:
        _compile([*compiler, *flags, "-o", name, str(recipe.source), *recipe.libraries], recipe)
        scratch.chmod(0o700)
        path = place / f"{recipe.name}-{key}-{folder.content_digest(scratch)}.so"
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return path


def _compile(command: list[str], recipe: Recipe) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    begun = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
    ) as child:
        try:
            try:
                _, said = child.communicate(timeout=QUIET_S)
            except subprocess.TimeoutExpired:
                _say(f"building {_words(recipe)} with {Path(command[0]).name}, once per machine; at most {recipe.seconds:.0f} s")
                _, said = child.communicate(timeout=max(recipe.seconds - QUIET_S, 0.0))
                if not child.returncode:
                    _say(f"built {_words(recipe)} in {time.monotonic() - begun:.0f} s")
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, stderr=said)


def _words(recipe: Recipe) -> str:
    return recipe.says or recipe.name


def _say(text: str) -> None:
    sys.stderr.write(f"opguard: {text}\n")
    sys.stderr.flush()
