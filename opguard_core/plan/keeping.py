"""What a run is asked to keep in full, and what it is asked to put in place of a result: files that somebody may have edited.

    keep        {"format": 1, "boundaries": [KEY, ...], "limit_bytes": N}
    transplant  {"format": 1, "transplants": [{"boundary": KEY, "kept": PATH, "slots": {"out.0": "out.0"}}, ...]}

KEY is `trace.boundary.BoundaryKey`. ``limit_bytes`` may be left out, and so may ``slots``: then every result and every argument written
in place that the kept file holds is put into the slot of the same name. A single transplant may stand beside ``format`` without a list.
Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opguard_core.errors import ConfigError
from opguard_core.trace.boundary import BoundaryKey, parse_key
from opguard_core.trace.files import write_atomic

FORMAT = 1
LIMIT_BYTES = 256 << 20
MAX_LIMIT_BYTES = 1 << 36
MAX_BOUNDARIES = 256
MAX_SLOTS = 4096
MAX_FILE_BYTES = 16 << 20
_MAX_NAME = 400
RESULTS = ("out.", "mut.")  # what a transplant writes if nothing is said: results, and arguments written in place
ARGUMENTS = ("in.", "kw.")  # what it writes before the call where that is said


@dataclass(frozen=True)
class Keep:
    """What to keep.

    Attributes:
        boundaries: Which boundaries; number ``i`` goes into ``kept-<i>.safetensors`` of its rank.
        limit_bytes: Bytes of tensors that one rank keeps in total; what goes beyond is left out, with that as its reason.
    """

    boundaries: tuple[BoundaryKey, ...]
    limit_bytes: int = LIMIT_BYTES

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return {"format": FORMAT, "boundaries": [key.as_dict() for key in self.boundaries], "limit_bytes": self.limit_bytes}

    def save(self, path: Path) -> None:
        """Write the file that ``--keep`` takes, only for its owner. Raises OSError."""
        write_atomic(path, json.dumps(self.as_dict(), indent=1).encode("ascii") + b"\n")


@dataclass(frozen=True)
class Transplant:
    """What to put where.

    Attributes:
        boundary: After which call.
        kept: The kept file whose bytes are put there.
        slots: Slot of the boundary -> slot of the kept file; empty for all of the same names.
    """

    boundary: BoundaryKey
    kept: Path
    slots: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return {"boundary": self.boundary.as_dict(), "kept": str(self.kept), "slots": dict(self.slots)}


def plain_transplants(transplants: Iterable[Transplant]) -> dict[str, Any]:
    """Plain form of several for JSON."""
    return {"format": FORMAT, "transplants": [one.as_dict() for one in transplants]}


def save_transplants(path: Path, transplants: Iterable[Transplant]) -> None:
    """Write the file that ``--transplant`` takes, only for its owner. Raises OSError."""
    write_atomic(path, json.dumps(plain_transplants(transplants), indent=1).encode("ascii") + b"\n")


def kept_file(index: int) -> str:
    """Name of the file of boundary number ``index`` in the folder of its rank."""
    return f"kept-{index}.safetensors"


def parse_keep(value: object) -> Keep:
    """Read the plain form.

    Raises:
        ValueError: It is none; the text says what is wrong.
    """
    record = _record(value, {"format", "boundaries"}, {"limit_bytes"})
    boundaries, limit = record["boundaries"], record.get("limit_bytes", LIMIT_BYTES)
    if not isinstance(boundaries, list) or not 1 <= len(boundaries) <= MAX_BOUNDARIES:
        raise ValueError(f"boundaries is a list of 1 to {MAX_BOUNDARIES}")
    if type(limit) is not int or not 0 <= limit <= MAX_LIMIT_BYTES:
        raise ValueError(f"limit_bytes is a whole number of at most {MAX_LIMIT_BYTES}")
    keys = tuple(map(parse_key, boundaries))
    if len(set(keys)) != len(keys):
        raise ValueError("a boundary is named twice")
    return Keep(keys, limit)


def parse_transplants(value: object) -> tuple[Transplant, ...]:
    """Read the plain form.

    Raises:
        ValueError: It is none; the text says what is wrong.
    """
    if isinstance(value, Mapping) and "transplants" not in value:
        record = _record(value, {"format", "boundary", "kept"}, {"slots"})
        return (_transplant({name: item for name, item in record.items() if name != "format"}),)
    listed = _record(value, {"format", "transplants"}, set())["transplants"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_BOUNDARIES:
        raise ValueError(f"transplants is a list of 1 to {MAX_BOUNDARIES}")
    found = tuple(map(_transplant, listed))
    if len({one.boundary for one in found}) != len(found):
        raise ValueError("a boundary is named twice")
    return found


def _transplant(value: object) -> Transplant:
    record = _keys(value, {"boundary", "kept"}, {"slots"})
    kept, slots = record["kept"], record.get("slots", {})
    if not isinstance(kept, str) or not kept or "\0" in kept:
        raise ValueError("kept is the path of a kept file")
    if not isinstance(slots, Mapping) or len(slots) > MAX_SLOTS:
        raise ValueError("slots is an object from slots of the boundary to slots of the kept file")
    for name, source in slots.items():
        if not isinstance(source, str) or not source or len(name) > _MAX_NAME or len(source) > _MAX_NAME:
            raise ValueError(f"slot {name[:60]!r} has no slot of the kept file")
        if not name.startswith(RESULTS + ARGUMENTS):
            raise ValueError(f"{name[:60]!r} is no slot of an operator ({', '.join(RESULTS + ARGUMENTS)})")
    return Transplant(parse_key(record["boundary"]), Path(kept), dict(slots))


def load_keep(path: Path) -> Keep:
    """Read the file of ``--keep``.

    Raises:
        ConfigError: It cannot be read or is no such file.
    """
    try:
        return parse_keep(_read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--keep {path} cannot be carried out: {error}.",
            hint="Write the file with `opguard_core.plan.keeping.Keep`.",
            slug="keep-invalid",
        ) from error


def load_transplants(path: Path) -> tuple[Transplant, ...]:
    """Read the file of ``--transplant``; a relative path of a kept file begins at its folder.

    Raises:
        ConfigError: It cannot be read or is no such file.
    """
    try:
        found = parse_transplants(_read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--transplant {path} cannot be carried out: {error}.",
            hint="Write the file with `opguard_core.plan.keeping.save_transplants`.",
            slug="transplant-invalid",
        ) from error
    return tuple(replace(one, kept=(path.parent / one.kept).absolute()) for one in found)


def slots_to_put(asked: Transplant, kept: Iterable[str]) -> dict[str, str]:
    """Slots of the boundary that get bytes, each with the slot of the kept file that they are of.

    Args:
        asked: The request.
        kept: Slots that the kept file has bytes of.

    Raises:
        ConfigError: It has none of those that were named, or no result at all.
    """
    there = list(kept)
    slots = dict(asked.slots) or {name: name for name in there if name.startswith(RESULTS)}
    missing = sorted({source for source in slots.values() if source not in there})
    if missing or not slots:
        what = f"no bytes of {', '.join(missing[:4])}" if missing else "no result and no argument written in place"
        raise ConfigError(
            f"{asked.kept} has {what}, so nothing can be put in place of the result of {asked.boundary.shown()}.",
            hint="Keep the boundary again with room for its tensors (`limit_bytes`).",
            slug="transplant-invalid",
        )
    return slots


def _read(path: Path) -> object:
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
    return json.loads(data)


def _record(value: object, needed: set[str], allowed: set[str]) -> Mapping[str, Any]:
    record = _keys(value, needed, allowed)
    if record["format"] != FORMAT:
        raise ValueError(f"it has format {record['format']!r}; this release reads {FORMAT}")
    return record


def _keys(value: object, needed: set[str], allowed: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("it is no JSON object")
    if not needed <= set(value) <= needed | allowed:
        raise ValueError(f"it has the keys {', '.join(sorted(needed))}{''.join(f' and perhaps {name}' for name in sorted(allowed))}")
    return value
