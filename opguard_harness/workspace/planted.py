"""The shipped pairs of trainings: what each example's `planted.json` says, and a pair made ready to run.

    {"launch": ["python", "train.py"],            command line of both sides
     "needs": ["transformers"],                   packages beside torch
     "pairs": [{"name": "collator",               `demo EXAMPLE/collator`
                "what": "...",                    in words
                "suspect": "refactored",          folder the suspect starts from ("suspect" unless named)
                "launch": [...],                  another command line for this pair
                "edits": [{"file": "collator.py", "old": "...", "new": "..."}],
                "step": 3, "file": "collator.py", "text": "...", "origin": "unobserved-producer", "rank": 0}]}

An edit replaces text that occurs once. With "package" it is made in a copy of that installed package which the suspect
imports in its place. A pair without "step" is expected to be identical. Work that the suspect lacks is named on the reference's side.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from opguard_core.errors import DependencyMissing, EnvironmentUnsupported, UnknownOption
from opguard_core.ids import SIDES
from opguard_harness.compare.request import SideRequest
from opguard_harness.shipped import shipped_folder

FIRST = "tiny_gpt"
_PLANTED = "planted.json"
_FIND = (
    "import importlib.util as u, json, sys; found = {n: u.find_spec(n) for n in sys.argv[1:]};"
    "print(json.dumps({n: list(s.submodule_search_locations or [s.origin]) if s else [] for n, s in found.items()}))"
)


@dataclass(frozen=True)
class Edit:
    """One replacement that plants a difference.

    Attributes:
        file: Path inside the suspect's folder, or inside the package.
        old: Text that occurs once.
        new: What takes its place.
        package: Installed package that is copied and edited; empty for the program's own files.
    """

    file: str
    old: str
    new: str
    package: str = ""


@dataclass(frozen=True)
class Pair:
    """One shipped pair and the answer that is right for it.

    Attributes:
        example: Folder under examples/.
        name: Of the pair, inside the example.
        what: The planted difference in words.
        launch: Command line of both sides.
        needs: Packages that the programs import, beside torch.
        base: Folder that the suspect starts from.
        edits: What is planted there.
        expected: "step", "file", "text" and perhaps "origin" and "rank" of the place; empty for an identical pair.
    """

    example: str
    name: str
    what: str
    launch: tuple[str, ...]
    needs: tuple[str, ...] = ()
    base: str = "suspect"
    edits: tuple[Edit, ...] = ()
    expected: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name `demo` takes."""
        return f"{self.example}/{self.name}"

    @property
    def folder(self) -> Path:
        """The example's folder."""
        return shipped_folder("examples") / self.example

    def missed(self, answer: dict[str, Any]) -> str:
        """What is not as planted in an answer; empty when all is."""
        pivot = answer["pivot"] or {}
        place = pivot.get("suspect") or pivot.get("reference") or {}
        found = f"{answer['verdict']}" + (f" at step {pivot['step']} in {place.get('file')}:{place.get('line')}" if pivot else "")
        if not self.expected:
            return "" if answer["verdict"] == "identical" else found
        same = all(pivot.get(key) == self.expected[key] for key in ("step", "origin", "rank") if key in self.expected)
        there = place.get("file") == self.expected["file"] and self.expected["text"] in place.get("statement", "")
        return "" if answer["verdict"] == "diverged" and same and there else f"{found} ({pivot.get('origin')})"


def pairs() -> Iterator[Pair]:
    """All shipped pairs, the first example first."""
    folders = [path.parent for path in shipped_folder("examples").glob(f"*/{_PLANTED}")]
    for folder in sorted(folders, key=lambda path: (path.name != FIRST, path.name)):
        document = json.loads((folder / _PLANTED).read_text("ascii"))
        for entry in document["pairs"]:
            yield Pair(
                example=folder.name,
                name=entry["name"],
                what=entry["what"],
                launch=tuple(entry.get("launch", document["launch"])),
                needs=tuple(document.get("needs", ())),
                base=entry.get("suspect", "suspect"),
                edits=tuple(Edit(**edit) for edit in entry.get("edits", ())),
                expected={key: entry[key] for key in ("step", "file", "text", "origin", "rank") if key in entry},
            )


def find_pair(title: str) -> Pair:
    """A pair by `EXAMPLE/NAME`, or the first planted one of `EXAMPLE`.

    Raises:
        UnknownOption: There is none.
    """
    known = list(pairs())
    for pair in known:
        if title == pair.title or (title == pair.example and pair.expected):
            return pair
    names = ", ".join(pair.title for pair in known)
    raise UnknownOption(f"There is no example {title!r}; there are {names}.", hint="`opguard-harness demo --list` says what they are.")


def stage(pair: Pair, folder: Path, python: Path | None) -> tuple[SideRequest, SideRequest]:
    """Copy a pair and plant its difference.

    Args:
        pair: The pair.
        folder: An empty folder; gets both sides, and the edited packages.
        python: The training's interpreter; only asked for what the pair needs.

    Raises:
        DependencyMissing: It lacks a package that the programs import.
        EnvironmentUnsupported: A file is not the one that the edit is for.
    """
    for side, source in zip(SIDES, ("reference", pair.base), strict=True):
        shutil.copytree(pair.folder / source, folder / side, ignore=shutil.ignore_patterns("__pycache__"))
    installed = _installed(pair.needs, python)
    suspect_env = {}
    for edit in pair.edits:
        target = folder / "suspect"
        if edit.package:
            target = folder / "packages"
            suspect_env["PYTHONPATH"] = str(target)
            target = shadow(installed[edit.package], target / edit.package, PurePosixPath(edit.file))
        _replace(target / edit.file, edit)
    return SideRequest(folder / "reference"), SideRequest(folder / "suspect", env=suspect_env)


def shadow(package: Path, copy: Path, changed: PurePosixPath) -> Path:
    """A copy of an installed package of which only one file is a file of its own; all else are links to the original.

    Args:
        package: The installed package.
        copy: Where the copy lies or will lie; its parent goes on the import path.
        changed: The file, relative to the package.

    Returns:
        The copy.
    """
    source, target = package, copy
    for part in changed.parts:
        if not target.is_dir() or target.is_symlink():
            target.unlink(missing_ok=True)
            target.mkdir(parents=True)
            for entry in source.iterdir():
                if entry.name != "__pycache__":
                    (target / entry.name).symlink_to(entry)
        source, target = source / part, target / part
    if target.is_symlink():
        target.unlink()
        shutil.copyfile(source, target)
    return copy


def _replace(path: Path, edit: Edit) -> None:
    text = path.read_text("utf-8")
    if text.count(edit.old) != 1:
        raise EnvironmentUnsupported(
            f"The difference cannot be planted: {path} has the text {edit.old!r} {text.count(edit.old)} times.",
            hint=f"Install the version of {edit.package or 'this package'} that constraints.txt names.",
        )
    path.write_text(text.replace(edit.old, edit.new), "utf-8")


def _installed(names: tuple[str, ...], python: Path | None) -> dict[str, Path]:
    """Where the training's interpreter has packages.

    Raises:
        DependencyMissing: It lacks one.
    """
    if not names:
        return {}
    assert python is not None, "a pair that needs packages is staged for an interpreter"
    done = subprocess.run([str(python), "-c", _FIND, *names], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    found = json.loads(done.stdout)
    missing = [name for name in names if not found[name]]
    if missing:
        raise DependencyMissing(
            f"The training Python {python} lacks {', '.join(missing)}, which this example imports.",
            hint=f"Run: {python} -m pip install {' '.join(missing)}",
        )
    return {name: Path(places[0]) for name, places in found.items()}
