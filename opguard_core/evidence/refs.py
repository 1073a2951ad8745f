"""The one grammar of evidence: short names of recorded facts, safe to put anywhere an identifier may stand.

    ev:<trace12>/<rank>/<seq>[/<slot or field>]    one boundary of one trace, or one slot or field of it
    src:<digest12>/<file>:<first>-<last>           lines of a source text that a run executed
    job:<id>/<artefact>[/<part>]                   what a job, run or comparison has left, or one field of it

`trace12` begins the digest of the trace (`opguard_core.trace.identity`), `digest12` that of the text. What a run controls
(file names, slot names) is percent-encoded, so a reference matches `STRICT` whatever it names; a name that is prose rather than
a name, or has characters that nobody sees, is a digest of itself, so that no sentence rides on one. A reference has one spelling:
`parse` refuses every other one. Where the facts lie is not for this module.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from opguard_core.errors import EvidenceInvalid

STRICT = re.compile(r"(?:ev|src|job):[A-Za-z0-9._~%:/-]{1,400}")
"""What every reference looks like."""

URI = "opguard://evidence/"
"""Evidence as a resource: this and the reference."""

DIGEST_CHARS = 12
MAX_NAME_CHARS = 240
"""Escaped characters of a name; of a longer one the end is kept, after `CUT`."""

CUT = "~"
FIELDS = ("operator", "place", "phase", "step", "args", "random", "stack", "module", "kernels")
"""Parts of a boundary that are no slot; names of slots have a dot or a colon."""

MAX_SPACES = 3
"""Spaces that a name may have."""

_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_CHARS}}}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_HOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_ARTEFACT = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PROSE_HEX = 24
_ESCAPE = re.compile(r"%[0-9A-F]{2}")


@dataclass(frozen=True)
class EventRef:
    """A boundary.

    Attributes:
        trace: First characters of the trace's digest.
        rank: Global rank.
        seq: Number of the event.
        part: Name of a slot or field of it, or empty; a long name begins with `CUT`.
    """

    trace: str
    rank: int
    seq: int
    part: str = ""

    def __str__(self) -> str:
        """The reference as text."""
        part = f"/{escape(self.part)}" if self.part else ""
        return f"ev:{self.trace[:DIGEST_CHARS]}/{self.rank}/{self.seq}{part}"

    def names(self, slot: str) -> bool:
        """Whether its part is that slot or field; of a cut name only the end is known."""
        return escape(self.part) == escape(slot)


@dataclass(frozen=True)
class SourceRef:
    """Lines of an executed source text.

    Attributes:
        digest: First characters of the text's digest.
        file: The file as places name it; a long name begins with `CUT`.
        first: First line, 1-based.
        last: Last line.
    """

    digest: str
    file: str
    first: int
    last: int

    def __str__(self) -> str:
        """The reference as text."""
        return f"src:{self.digest[:DIGEST_CHARS]}/{escape(self.file, keep='/')}:{self.first}-{self.last}"

    def names(self, file: str) -> bool:
        """Whether its file is that one; of a cut name only the end is known."""
        return escape(self.file, keep="/") == escape(file, keep="/")


@dataclass(frozen=True)
class JobRef:
    """Something that a job, run or comparison has left.

    Attributes:
        holder: Id of the job, run or comparison.
        artefact: Which of the things it left.
        part: A field of an answer or result, ``contract.<key>`` for one setting, or empty.
    """

    holder: str
    artefact: str
    part: str = ""

    def __str__(self) -> str:
        """The reference as text."""
        part = f"/{escape(self.part)}" if self.part else ""
        return f"job:{self.holder}/{self.artefact}{part}"

    def names(self, field: str) -> bool:
        """Whether its part is that field; of a cut name only the end is known."""
        return escape(self.part) == escape(field)


Ref = EventRef | SourceRef | JobRef


def parse(text: str) -> Ref:
    """Read a reference, or one written as the resource that shows it.

    Raises:
        EvidenceInvalid: It is none, or not in its one spelling.
    """
    text = text.removeprefix(URI)
    if not STRICT.fullmatch(text):
        raise _refused(text, "it is no reference")
    scheme, _, rest = text.partition(":")
    found: Ref = _event(text, rest) if scheme == "ev" else _source(text, rest) if scheme == "src" else _job(text, rest)
    if str(found) != text:
        raise _refused(text, f"its one spelling is {found}")
    return found


def is_reference(text: str) -> bool:
    """Whether a text begins like a reference; `parse` says whether it is one."""
    return text.removeprefix(URI).startswith(("ev:", "src:", "job:"))


def is_holder(name: str) -> bool:
    """Whether an id can stand in a reference to what it left."""
    return _HOLDER.fullmatch(name) is not None


def escape(name: str, keep: str = "") -> str:
    """A name as identifier: bytes outside letters, digits and ``. _ -`` are percent-encoded; a long one is cut at the front.

    Args:
        name: Any text.
        keep: Further ASCII characters to leave as they are.
    """
    cut = name.startswith(CUT) and len(name) > 1
    if not cut and _is_prose(name):
        return f"{CUT}{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:_PROSE_HEX]}"
    kept = _KEPT | frozenset(keep.encode("ascii"))
    parts = [chr(byte) if byte in kept else f"%{byte:02X}" for byte in name[int(cut) :].encode("utf-8", "surrogatepass")]
    while sum(map(len, parts)) > MAX_NAME_CHARS - 1 and (cut or sum(map(len, parts)) > MAX_NAME_CHARS):
        excess = sum(map(len, parts)) - (MAX_NAME_CHARS - 1)
        parts, cut = parts[max(1, excess // 3) :], True
    while cut and parts and _continues(parts[0]):  # never in the middle of a character
        del parts[0]
    return f"{CUT if cut else ''}{''.join(parts)}"


def _is_prose(name: str) -> bool:
    """Whether a name could carry a sentence, or shows something else than it is."""
    return name.count(" ") > MAX_SPACES or not name.isprintable()


def _continues(part: str) -> bool:
    """Whether an escaped byte is not the first one of its character."""
    return len(part) == 3 and 0x80 <= int(part[1:], 16) < 0xC0


def _event(text: str, rest: str) -> EventRef:
    pieces = rest.split("/")
    if len(pieces) not in (3, 4) or not _DIGEST.fullmatch(pieces[0]) or not all(map(_NUMBER.fullmatch, pieces[1:3])):
        raise _refused(text, "an event is named ev:<trace12>/<rank>/<seq>[/<slot or field>]")
    part = _unescaped(text, pieces[3]) if len(pieces) == 4 else ""
    if len(pieces) == 4 and not part:
        raise _refused(text, "nothing follows its last slash")
    return EventRef(pieces[0], int(pieces[1]), int(pieces[2]), part)


def _source(text: str, rest: str) -> SourceRef:
    digest, _, named = rest.partition("/")
    file, _, lines = named.rpartition(":")
    first, _, last = lines.partition("-")
    if not _DIGEST.fullmatch(digest) or not file or not all(map(_NUMBER.fullmatch, (first, last))):
        raise _refused(text, "source lines are named src:<digest12>/<file>:<first>-<last>")
    if not 1 <= int(first) <= int(last):
        raise _refused(text, "lines count from 1, and the last is not before the first")
    return SourceRef(digest, _unescaped(text, file), int(first), int(last))


def _job(text: str, rest: str) -> JobRef:
    pieces = rest.split("/")
    if len(pieces) not in (2, 3) or not _HOLDER.fullmatch(pieces[0]) or not _ARTEFACT.fullmatch(pieces[1]):
        raise _refused(text, "what a job left is named job:<id>/<artefact>[/<part>]")
    part = _unescaped(text, pieces[2]) if len(pieces) == 3 else ""
    if len(pieces) == 3 and not part:
        raise _refused(text, "nothing follows its last slash")
    return JobRef(pieces[0], pieces[1], part)


def _unescaped(text: str, name: str) -> str:
    if name.count("%") != len(_ESCAPE.findall(name)):
        raise _refused(text, "a per cent sign is followed by two upper-case hex digits")
    cut = name.startswith(CUT)
    data = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), name[int(cut) :].encode("ascii"))
    try:
        return CUT * cut + data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _refused(text, "its bytes are no UTF-8") from error


def _refused(text: str, why: str) -> EvidenceInvalid:
    return EvidenceInvalid(f"{text[:100]!r} is not evidence: {why}.")
