"""Cards of this machine, and what the training's interpreter has for observing on them: kernels, launcher, native engine.

The driver's own tool is asked; torch is not imported and no card is started. Each finding says what is used where something is missing.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opguard_core.builds.compilers import find_compilers, none_found

_ASK = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader,nounits")
_ASK_S = 30.0
_BY_TORCH = "Digests on a card are computed by torch operations, the same bits, slower"


class Found(NamedTuple):
    """One line of the doctor: name, level ("ok" or "note"), what was found, what to do about it."""

    name: str
    level: str
    found: str
    fix: str = ""


class Card(NamedTuple):
    """One card as the driver's tool tells it; ``errors`` are uncorrected memory errors since the driver was loaded, or None."""

    name: str
    mebibytes: str
    driver: str
    errors: int | None


def cards() -> tuple[Card, ...]:
    """All cards of this machine; none where the tool is missing or does not answer."""
    try:
        asked = subprocess.run(_ASK, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parsed(asked.stdout) if asked.returncode == 0 else ()


def parsed(listing: str) -> tuple[Card, ...]:
    """Cards as ``nvidia-smi`` lists them; lines of anything else are passed over."""
    found = []
    for line in listing.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4 and words[1].isdecimal():
            name, mebibytes, driver, errors = words
            found.append(Card(name, mebibytes, driver, int(errors) if errors.isdecimal() else None))
    return tuple(found)


def examine(python: str, facts: Mapping[str, Any], present: tuple[Card, ...]) -> Iterator[Found]:
    """What would observe, and where digests would be computed.

    Args:
        python: Path of the training's interpreter.
        facts: What it said of itself (`probe.facts`).
        present: Cards of this machine.
    """
    builds = facts.get("builds") or {}
    yield _engine(builds, present)
    yield _compiled(builds, present)
    if not present:
        yield Found("gpu", "ok", "No NVIDIA card answers here; trainings are observed on the processor.")
        return
    yield _gpu(present)
    yield _kernels(python, builds)
    yield _launcher(builds)


def _engine(builds: Mapping[str, Any], present: tuple[Card, ...]) -> Found:
    lacks = _lacks("c++", builds, ("python_headers", "torch_headers"))
    if lacks:
        return Found(
            "engine", "note", f"Operators are observed from Python (engine dispatch), the same events, slower: {lacks}.", _fix(lacks)
        )
    chosen = "native, since a card answers" if present else "dispatch, since no card answers; `--engine native` asks for the other"
    build = "The native engine can be built; the first run that uses it does so, once per machine, in about a minute"
    return Found("engine", "ok", f"{build}. A run that does not ask is observed by {chosen}.")


def _compiled(builds: Mapping[str, Any], present: tuple[Card, ...]) -> Found:
    """What becomes of regions of torch.compile; mirrors `engines.compiled.choose_level`."""
    if builds.get("stays_compiled") is False and not (present and not _lacks("c++", builds, ("python_headers", "torch_headers"))):
        text = "Regions of torch.compile run eagerly (level eager): this torch compiles nothing while a dispatch mode looks."
        return Found(
            "compiled code", "note", text, "Ask for `--engine native`, or use a torch that has `ignore_compile_internals` (2.11 does)."
        )
    text = "Regions of torch.compile stay compiled (level kernels): each generated kernel is observed at its launch"
    return Found("compiled code", "ok", f"{text}. `--compiled probes` adds named values, `--compiled eager` looks at each operator.")


def _gpu(present: tuple[Card, ...]) -> Found:
    counts = Counter((card.name, card.mebibytes, card.driver) for card in present)
    told = "; ".join(f"{count} x {name}, {mebibytes} MiB, driver {driver}" for (name, mebibytes, driver), count in counts.items())
    faulty = sum(card.errors or 0 for card in present)
    if faulty:
        text = f"{told}. Uncorrected memory errors since the driver was loaded: {faulty}."
        return Found("gpu", "note", text, "Look at `nvidia-smi -q -d ECC,ROW_REMAPPER` before blaming a program.")
    return Found("gpu", "ok", f"{told}.")


def _kernels(python: str, builds: Mapping[str, Any]) -> Found:
    if builds.get("cupy"):
        return Found("gpu kernels", "ok", f"CuPy {builds['cupy']} compiles them on first use; nvcc is not needed.")
    text = (
        "Digests on a card are computed by torch operations, the same bits, slower: the training Python has no CuPy to compile the kernels."
    )
    return Found("gpu kernels", "note", text, f"Run: {python} -m pip install cupy-cuda13x   (cupy-cuda12x for a torch with CUDA 12)")


def _launcher(builds: Mapping[str, Any]) -> Found:
    lacks = _lacks("c", builds, ("python_headers",))
    if lacks:
        return Found(
            "gpu launcher", "note", f"Digests on a card are computed by torch operations, the same bits, slower: {lacks}.", _fix(lacks)
        )
    return Found("gpu launcher", "ok", "The launcher of the kernels is built on first use, in seconds.")


def _lacks(language: str, builds: Mapping[str, Any], headers: tuple[str, ...]) -> str:
    """What is missing to build a part, "" if nothing is known to be."""
    if not find_compilers(language):
        return none_found(language)
    missing = [name for name in headers if builds.get(name) is False]
    return f"the training Python lacks {' and '.join(name.replace('_', ' ') for name in missing)}" if missing else ""


def _fix(lacks: str) -> str:
    if "python headers" in lacks:
        return "Install the interpreter's headers (Debian: python3-dev)."
    return "Install a wheel of torch that holds its headers." if "torch headers" in lacks else "Install gcc and g++, or clang."
