"""Which stored results hold a record that somebody cites. Standard library only until a record is looked for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import EventRef, JobRef, is_reference, parse
from opguard_harness.config import runs_dir
from opguard_harness.workspace.evidence import digest_of, stored_traces


class Holders:
    """Finds the results that a citation leads to, among all that was stored when it was first asked.

    Cost: the first event reads manifests and indexes of all stored traces, the first source text lists theirs; further ones nothing.
    """

    def of(self, evidence: str) -> set[str]:
        """Ids of the stored results that hold a record, copies included; none if it lies elsewhere, has gone, or is no record."""
        if not is_reference(evidence):  # as a comparison writes it: ``TRACE#rank=0&seq=7``
            trace, marked, _ = evidence.partition("#")
            return {holder_of(Path(trace))} - {""} if marked and trace else set()
        try:
            reference = parse(evidence)
        except OpGuardError:
            return set()
        if isinstance(reference, JobRef):
            return {reference.holder}
        known, short = (self._traces, reference.trace) if isinstance(reference, EventRef) else (self._sources, reference.digest)
        return {holder for digest, holders in known.items() if digest.startswith(short) for holder in holders}

    @cached_property
    def _stored(self) -> list[tuple[Path, str]]:
        return [(trace, holder) for trace in stored_traces() if (holder := holder_of(trace))]

    @cached_property
    def _traces(self) -> dict[str, set[str]]:
        """By digest; a trace whose digest cannot be told is nobody's evidence any more."""
        found: dict[str, set[str]] = {}
        for trace, holder in self._stored:
            try:
                found.setdefault(digest_of(trace), set()).add(holder)
            except OpGuardError:
                continue
        return found

    @cached_property
    def _sources(self) -> dict[str, set[str]]:
        from opguard_core.trace.sources import SOURCES_NAME

        found: dict[str, set[str]] = {}
        for trace, holder in self._stored:
            for file in (trace / SOURCES_NAME).glob("*.py*"):
                found.setdefault(file.name.split(".")[0], set()).add(holder)
        return found


def holder_of(path: Path) -> str:
    """Id of the stored result that a path lies in; empty if it lies outside of the folder of runs, or nowhere."""
    try:
        base, resolved = runs_dir().resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle; a text that is no path
        return ""
    return resolved.relative_to(base).parts[0] if resolved != base and resolved.is_relative_to(base) else ""


def result_named(text: str) -> str:
    """Id of the stored result that a text means, which is its id or a path into it; empty for a path elsewhere."""
    return holder_of(Path(text)) if "/" in text else text


def named_in(texts: Iterable[str], ids: Iterable[str]) -> set[str]:
    """The ids that some texts are, or hold as a part of a path, links followed."""
    known, found = set(ids), set()
    for text in texts:
        found |= known.intersection((*text.split("/"), holder_of(Path(text)) if "/" in text else ""))
    return found
