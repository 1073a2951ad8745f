"""The first difference as a program of one file: found among the confirmations that are stored, and handed out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.errors import EvidenceInvalid, EvidenceNotFound, EvidenceStale, ReproRefused
from opguard_core.evidence.refs import EventRef, JobRef, SourceRef, is_holder, is_reference, parse
from opguard_core.evidence.repro.bundle import TEMPLATE
from opguard_core.trace.files import read_checked
from opguard_harness.access.opened import MARK
from opguard_harness.access.rules import current
from opguard_harness.config import runs_dir
from opguard_harness.errors import OpenedReadOnly, OutRefused, OutsideRoots, PathRefused
from opguard_harness.workspace.evidence import ARTEFACTS

SCRIPT, DATA = ARTEFACTS["repro"], "repro.safetensors"
MAX_LISTING_BYTES = 16 << 20
MAX_SCRIPT_BYTES = 1 << 20
_KEPT = ARTEFACTS["kept"]


@dataclass(frozen=True)
class Repro:
    """A boundary that can be run again.

    Attributes:
        job: The confirmation that kept it.
        script: The program.
        data: Its data, which lies beside it.
        events: Evidence ids of the boundary, by side.
    """

    job: str
    script: Path
    data: Path
    events: dict[str, list[str]]


def find_repro(name: str) -> Repro:
    """Look one up.

    Args:
        name: The evidence id of a boundary that a confirmation kept, of the comparison's trace or the replay's; or the id of the
            confirmation.

    Raises:
        EvidenceInvalid: It is a reference to something else.
        EvidenceNotFound: No confirmation kept that boundary.
        ReproRefused: The boundary cannot be rebuilt; the text says why.
        EvidenceStale: A file of it is gone.
        OpenedReadOnly: Its program came out of a pack and is not ours.
    """
    holder, listing = _named(name)
    refused = listing.get("repro", {}).get("refused")
    if refused:
        raise ReproRefused(str(refused))
    files = [_file(holder, file) for file in (SCRIPT, DATA)]
    if _is_opened(files[0].parent) and read_checked(files[0], limit=MAX_SCRIPT_BYTES) != TEMPLATE.read_bytes():
        raise OpenedReadOnly(f"{SCRIPT} of {holder} came out of a pack and is not the one that this release writes: it may do anything.")
    return Repro(holder, files[0], files[1], dict(listing["events"]))


def hand_out(repro: Repro, out: Path) -> Path:
    """Copy both files into a folder.

    Args:
        repro: As found.
        out: Absent, or a folder that has neither file.

    Returns:
        The program there.

    Raises:
        OutRefused: One of the files is there already, or it is no folder.
    """
    folder = current().path(out, "out")
    taken = [file for file in (SCRIPT, DATA) if (folder / file).exists() or (folder / file).is_symlink()]
    if taken or (folder.exists() and not folder.is_dir()):
        what = f"has {taken[0]} already" if taken else "is no folder"
        raise OutRefused(f"{folder} {what}.", hint="Name a folder that has none, or leave --out away: the files lie in the job's folder.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for source in (repro.script, repro.data):
        shutil.copyfile(source, folder / source.name, follow_symlinks=False)
        (folder / source.name).chmod(0o600)
    return folder / SCRIPT


def _named(name: str) -> tuple[str, dict[str, Any]]:
    """The confirmation that a name means, and its list of what was kept."""
    reference = parse(name) if is_reference(name) else None
    if isinstance(reference, SourceRef):
        raise EvidenceInvalid(f"{name[:100]!r} names lines of source.", hint="Name a boundary (ev:...) or the job of a confirmation.")
    if isinstance(reference, EventRef):
        wanted = str(EventRef(reference.trace, reference.rank, reference.seq))
        for holder, listing in _kept():
            if any(wanted in ids for ids in listing["events"].values()):
                return holder, listing
        raise EvidenceNotFound(
            f"No confirmation has kept the tensors of {wanted}.",
            hint="`confirm_difference` keeps those of a comparison's first difference; then name that, or the id of its job.",
        )
    holder = reference.holder if isinstance(reference, JobRef) else name
    kept = _listing(runs_dir() / holder) if is_holder(holder) else None
    if kept is None:
        raise EvidenceNotFound(
            f"{holder[:100]!r} is no confirmation that kept tensors.",
            hint="`list_runs` lists jobs; `confirm_difference` keeps the tensors of a first difference.",
        )
    return holder, kept


def _kept() -> Iterator[tuple[str, dict[str, Any]]]:
    """All confirmations that kept something: those that were made here first, the newest first."""
    if not runs_dir().is_dir():
        return
    for folder in sorted(runs_dir().iterdir(), key=lambda path: (_is_opened(path), -path.lstat().st_mtime_ns)):
        listing = None if folder.name.startswith(".") or folder.is_symlink() else _listing(folder)
        if listing is not None:
            yield folder.name, listing


def _is_opened(folder: Path) -> bool:
    """Whether a result folder came out of a pack."""
    return os.path.lexists(folder / MARK)


def _listing(folder: Path) -> dict[str, Any] | None:
    """What a confirmation kept; None where there is no such list, or it is not what we wrote."""
    path = folder / _KEPT
    if not path.is_file():
        return None
    try:
        value = json.loads(current().read(path, "kept tensors", MAX_LISTING_BYTES).decode("ascii"))
        events = {str(side): [str(cited) for cited in ids] for side, ids in dict(value["events"]).items()}
        return {"events": events, "repro": dict(value["repro"])}
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OutsideRoots, PathRefused):
        return None


def _file(holder: str, name: str) -> Path:
    """A file of a confirmation; never followed if it is a link."""
    path = current().path(runs_dir() / holder, "id") / name
    if path.is_symlink() or not path.is_file():
        raise EvidenceStale(f"{name} of {holder} is gone.", hint="Confirm the comparison again with another `token`.")
    return path
