"""Packs for tests: a case with everything in it, and packs that were changed and whose list was made to fit again."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opguard_harness.config import runs_dir, state_dir
from opguard_harness.workspace.cases import open_or_resume, require_case
from opguard_harness.workspace.citations import cite_all
from opguard_harness.workspace.findings import finding_of, record
from opguard_harness.workspace.packs.listed import MANIFEST
from opguard_harness.workspace.packs.writing import Packed, header, pack
from tests.support.stored_case import StoredCase, stored_case

CANARY = "it-ran"


def whole_case(folder: Path) -> StoredCase:
    """A case with a finding, a comparison that says it ran programs, kept tensors, damage, logs, and a repro.

    Args:
        folder: Gets the traces, and programs that would leave `CANARY` if anybody ran them.
    """
    made = stored_case(folder)
    result = runs_dir() / made.comparison
    for side in ("reference", "suspect"):
        (folder / f"{side}-program").mkdir()
        (folder / f"{side}-program" / "train.py").write_text(f"open({str(folder / CANARY)!r}, 'w')")
        (folder / side / "rank-00000" / "kept-0.safetensors").write_bytes(b"kept")
    document = json.loads((result / "programs.json").read_text())
    for side in ("reference", "suspect"):
        program = {"kind": "program", "folder": str(folder / f"{side}-program"), "argv": ["python", "train.py"]}
        document[side] = {**program, "whole": True, "env": [], "commit": ""}
    (result / "programs.json").write_text(json.dumps(document))
    (result / "damage.json").write_text('{"count": 1}')
    (result / "repro.py").write_text(f"open({str(folder / CANARY)!r}, 'w')")
    (result / "stderr.txt").write_text("what the program said")
    cited = [made.cited("reference"), made.cited("suspect", made.answer["pivot"]["slot"]), f"job:{made.comparison}/answer"]
    claim = f"They part in `{made.answer['pivot']['operator']}`."
    record(made.case.id, finding_of(claim, "observed", cite_all(require_case(made.case.id), claim, cited, "observed")))
    (made.case.folder / "report.md").write_text("# the report")
    (made.case.folder / "report.html").write_text("<p>with source</p>")
    return made


def small_pack(folder: Path, name: str = "small.zip") -> Packed:
    """The pack of a case without comparisons: every byte of it can be tried."""
    folder.mkdir(exist_ok=True)
    case, _ = open_or_resume(folder, "nothing was compared yet")
    (case.folder / "report.md").write_text("# nothing yet")
    return pack(case.id, folder / name)


def contents(path: Path) -> dict[str, bytes]:
    """Every entry of a pack but its list."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}


def manifest_of(path: Path) -> dict[str, Any]:
    """The list of a pack."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(MANIFEST))


def forged(
    source: Path,
    target: Path,
    changed: Mapping[str, bytes | None] | None = None,
    listed: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """A pack with other contents, as somebody would make it who knows the format: sizes, digests and headers fit.

    Args:
        source: A pack.
        target: The new one.
        changed: New content by name; None takes a file out.
        listed: Changes the list after it was made to fit.
    """
    files = {**contents(source), **(changed or {})}
    held = {name: data for name, data in sorted(files.items()) if data is not None}
    document = manifest_of(source)
    document["files"] = [{"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in held.items()]
    if listed is not None:
        listed(document)
    data = (json.dumps(document, indent=1) + "\n").encode("ascii")
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in {MANIFEST: data, **held}.items():
            with archive.open(header(name, len(content)), "w") as entry:
                entry.write(content)
    return target


def nothing_was_opened() -> bool:
    """Nothing of a pack has come into the state folder."""
    folders = [state_dir() / name for name in ("cases", "runs")]
    left = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if not path.name.startswith(".")]
    return not left and not list(state_dir().glob(".opening-*"))
