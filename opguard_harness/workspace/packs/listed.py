"""The list of files that a pack begins with: the one thing that everything else in it is held against.

MANIFEST.json            this list
case/<file>              case.json, findings.json, filters.json and the reports
runs/<id>/...            answers, what was confirmed, traces with their kept tensors
jobs/<id>/<file>         what jobs left, where a finding cites it, and the results of confirmations
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from opguard_core.ids import SIDES
from opguard_core.trace.sources import SOURCES_NAME
from opguard_harness.access.opened import MARK
from opguard_harness.answer.plain import dumps
from opguard_harness.errors import PackDamaged
from opguard_harness.workspace.documents import once

FORMAT = 1
KIND = "opguard-case"
MANIFEST = "MANIFEST.json"
MAX_FILES = 60_000
MAX_MANIFEST_BYTES = 32 << 20
MAX_PACK_BYTES = (4 << 30) - (64 << 20)  # below what a plain zip can say
MOST_LEFT_OUT = 500

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}(\.[A-Za-z0-9][A-Za-z0-9_-]{0,40}){0,3}")
_MOST_PARTS = 9
_MOST_CHARS = 400
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CASE = re.compile(r"case-[0-9a-f]{12}")
_KEYS = {"format": int, "kind": str, "case": str, "sources": bool, "traces": dict, "files": list, "left_out": list, "left_out_total": int}

CASE_FILES = ("case.json", "findings.json", "filters.json", "report.md", "report.json", "report.html", "timeline.pftrace")
JOB_FILES = ("result.json", "log.txt", "spec.json", "state.json")
RUN_SUFFIXES = (".json", ".arrow", ".safetensors", ".log")


@dataclass(frozen=True)
class Listed:
    """One file of a pack.

    Attributes:
        name: Its name in the pack.
        bytes: Its size.
        sha256: Its digest.
    """

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a pack holds.

    Attributes:
        case: Id of the case where it was packed.
        sources: Whether source texts are in it.
        traces: Folder of each side's trace in the pack, by comparison.
        files: Every other file, by name.
        left_out: What was left out, each with `what` and `why`; at most `MOST_LEFT_OUT`.
        left_out_total: How many things were.
    """

    case: str
    sources: bool
    traces: dict[str, dict[str, str]]
    files: tuple[Listed, ...]
    left_out: tuple[dict[str, str], ...]
    left_out_total: int

    def data(self) -> bytes:
        """The file."""
        document = {"format": FORMAT, "kind": KIND, **vars(self), "files": [vars(item) for item in self.files]}
        return f"{dumps(document, indent=1)}\n".encode("ascii")

    @property
    def runs(self) -> list[str]:
        """Ids of the result folders in it."""
        return sorted({item.name.split("/")[1] for item in self.files if item.name.startswith("runs/")})


def is_name(name: str) -> bool:
    """Whether a pack may hold a file of that name: plain words below one of its three folders, and a kind of file that we write."""
    parts = name.split("/")
    if len(name) > _MOST_CHARS or not 2 <= len(parts) <= _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        return False
    if parts[0] == "case":
        return len(parts) == 2 and parts[1] in CASE_FILES
    if parts[0] == "jobs":
        return len(parts) == 3 and parts[2] in JOB_FILES
    if parts[0] != "runs" or len(parts) < 3 or parts[-1] == MARK:
        return False
    if parts[-1].endswith((".py", ".py.gz")):
        return parts[-1] == "repro.py" or parts[-2] == SOURCES_NAME
    return parts[-1].endswith(RUN_SUFFIXES)


def read_manifest(data: bytes) -> Manifest:
    """Read the list of a pack.

    Raises:
        PackDamaged: It is not one that this release reads.
    """
    try:
        document = json.loads(data, object_pairs_hook=once)
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise ValueError("it is not the list of a pack")
        if document.get("format") != FORMAT or type(document["format"]) is not int:
            raise PackDamaged(
                f"The pack has format {str(document.get('format'))[:40]}; this release reads {FORMAT}.",
                hint="Use the release that made it.",
            )
        wrong = [name for name, kind in _KEYS.items() if type(document.get(name)) is not kind]
        if wrong or document.keys() != _KEYS.keys() or not _CASE.fullmatch(document["case"]):
            raise ValueError(f"{wrong[0] if wrong else 'a key'} is not what a list has")
        found = Manifest(
            document["case"],
            document["sources"],
            {str(name): _sides(value) for name, value in document["traces"].items()},
            tuple(_listed(item) for item in document["files"]),
            tuple(_left_out(item) for item in document["left_out"]),
            document["left_out_total"],
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PackDamaged(f"{MANIFEST} cannot be read: {str(error)[:200]}.") from error
    names = [item.name for item in found.files]
    if names != sorted(set(names)) or len(names) > MAX_FILES or len(found.left_out) > MOST_LEFT_OUT or "case/case.json" not in names:
        raise PackDamaged(f"{MANIFEST} names a file twice, out of order, or too many, or no case.")
    folded = [name.casefold() for name in names]
    folders = {name[:at] for name in folded for at in range(len(name)) if name[at] == "/"}
    if len(set(folded)) < len(folded) or folders & set(folded):
        raise PackDamaged(f"{MANIFEST} names two files that some file systems take for one, or a file as a folder.")
    if found.data() != data:
        raise PackDamaged(f"{MANIFEST} is not written as a pack writes it.")
    return found


def _listed(item: Any) -> Listed:
    if item.keys() != {"name", "bytes", "sha256"}:
        raise ValueError("an entry has other keys")
    name, size, digest = item["name"], item["bytes"], item["sha256"]
    if type(name) is not str or not is_name(name):
        raise ValueError(f"{str(name)[:80]!r} is no name of a file in a pack")
    if type(size) is not int or not 0 <= size <= MAX_PACK_BYTES or type(digest) is not str or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{name} has no size and digest")
    return Listed(name, size, digest)


def _sides(value: Any) -> dict[str, str]:
    if value.keys() != set(SIDES) or not all(is_name(f"{name}/manifest.json") for name in value.values()):
        raise ValueError("a comparison's traces are not named")
    return {side: str(value[side]) for side in SIDES}


def _left_out(item: Any) -> dict[str, str]:
    if item.keys() != {"what", "why"} or not all(isinstance(text, str) for text in item.values()):
        raise ValueError("what was left out has no name or reason")
    return dict(item)
