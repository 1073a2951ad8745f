"""What was found out in a case: claims with their basis and evidence, each checked when recorded and again for a report.

A quoted value is what a claim puts between backticks: it has to stand in a record that the claim cites. The id of a finding
is a digest of its claim and evidence, so the same one is recorded once, and one that was changed on disk is noticed. A number
outside of backticks that stands in no record it cites stays a claim: who reads it is told that it was not checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opguard_harness.config import now
from opguard_harness.errors import CaseDamaged, ClaimRefused, FindingNotFound
from opguard_harness.workspace.cases import FORMAT, case_folder, check_format, require_case, require_writable
from opguard_harness.workspace.documents import locked, read_document, write_document

BASES = ("observed", "source inference", "intervention tested", "externally reported")
OBSERVED = "observed"  # the basis that says the records themselves show it, so at least one value of it has to be checked
REPORTED = "externally reported"  # the one basis that needs no evidence: it says that we have not seen it
MAX_FINDINGS = 10_000
MAX_BYTES = 64 << 20
CLAIM_CHARS = 1_000
MAX_CITED = 16
_QUOTED = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:0[xX][0-9a-fA-F]+|\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?)")
_KEYS = {"format": int, "case": str, "findings": list}
_FINDING_KEYS = {"id", "claim", "basis", "evidence", "recorded", "withdrawn"}
_KNOWN_SHOWN = 5


@dataclass(frozen=True)
class Cited:
    """Evidence as it was when the finding was recorded.

    Attributes:
        id: Its id.
        uri: Where it is read.
        quote: What stood there, in brief; run-controlled text.
        digest: Digest of what it resolved to.
    """

    id: str
    uri: str
    quote: str
    digest: str


@dataclass(frozen=True)
class Finding:
    """One claim.

    Attributes:
        id: ``finding-<12 hex>``, of claim and evidence.
        claim: What is said, redacted.
        basis: One of ``BASES``.
        evidence: What it cites.
        recorded: UTC.
        withdrawn: UTC; empty while it stands.
        unchecked: Numbers in its claim that stand in nothing it cites; known once its evidence was read, and not stored.
    """

    id: str
    claim: str
    basis: str
    evidence: tuple[Cited, ...]
    recorded: str
    withdrawn: str = ""
    unchecked: tuple[str, ...] = field(default=(), compare=False)


def finding_of(claim: str, basis: str, evidence: tuple[Cited, ...]) -> Finding:
    """A new finding.

    Raises:
        ClaimRefused: It cites nothing, and is not said to be somebody else's word.
    """
    claim = claim.strip()
    if not claim:
        raise ClaimRefused("The claim is empty.", hint="Say in a sentence what was found out.")
    if basis not in BASES:
        raise ClaimRefused(f"{basis[:40]!r} is no basis; known: {', '.join(BASES)}.")
    if not evidence and basis != REPORTED:
        raise ClaimRefused(f"A claim that is {basis} cites evidence, and this one cites none.")
    return Finding(_id_of(claim, [item.id for item in evidence]), claim, basis, evidence, now())


def unshown(claim: str, shown: str) -> list[str]:
    """The values quoted in a claim that do not stand in what it cites.

    Args:
        claim: A claim; what stands between backticks is quoted.
        shown: Text of all records it cites.
    """
    there = _flat(shown)
    return [quoted for quoted in quoted_in(claim) if not _stands(_flat(quoted), there)]


def quoted_in(claim: str) -> list[str]:
    """What a claim has between backticks: the only part of it that is compared with what it cites."""
    return [quoted for _, quoted in _QUOTED.findall(claim)]


def loose_numbers(claim: str) -> tuple[str, ...]:
    """The numbers of a claim outside of backticks, each once; not those that are part of a name, or written in words."""
    return tuple(dict.fromkeys(_NUMBER.findall(_QUOTED.sub(" ", claim))))


def unchecked_numbers(claim: str, shown: str) -> tuple[str, ...]:
    """The numbers of a claim that nothing it cites bears out, each once; what stands between backticks is checked anyway.

    Args:
        claim: A claim.
        shown: Text of all records it cites.
    """
    there = _flat(shown)
    return tuple(number for number in loose_numbers(claim) if not any(_stands(form, there) for form in _forms(number)))


def _forms(number: str) -> tuple[str, ...]:
    """A number as a record may spell it: without the sign of its own kind, without commas between thousands."""
    return tuple(dict.fromkeys((number, number.removeprefix("+"), number.replace(",", ""))))


def findings_of(case: str) -> list[Finding]:
    """All findings of a case in the order they were recorded, withdrawn ones too.

    Raises:
        CaseNotFound: There is no such case.
        CaseDamaged: The file is not what we wrote.
    """
    require_case(case)
    return read_findings(case_folder(case) / "findings.json", case)


def record(case: str, new: Finding) -> tuple[Finding, bool]:
    """Record a finding; the same claim with the same evidence is the same finding, of the basis said last.

    Returns:
        The finding as it is stored, and whether anything changed.
    """
    kept: list[Finding] = []

    def change(findings: list[Finding]) -> list[Finding]:
        same = next((item for item in findings if item.id == new.id), None)
        if same is None:
            if len(findings) >= MAX_FINDINGS:
                raise ClaimRefused(f"{case} has {MAX_FINDINGS} findings already.", hint="Open another case: `open_case` with case 'new'.")
            kept[:] = [new]
            return [*findings, new]
        again = replace(new, recorded=same.recorded)
        kept[:] = [same if _unordered(same) == _unordered(again) else again]
        return [kept[0] if item.id == new.id else item for item in findings]

    changed = _change(case, change)
    return kept[0], changed


def withdraw(case: str, finding: str) -> Finding:
    """Withdraw a finding: it stays on disk and leaves the report.

    Raises:
        FindingNotFound: The case has none of that id.
    """
    kept: list[Finding] = []

    def change(findings: list[Finding]) -> list[Finding]:
        kept[:] = [item for item in findings if item.id == finding]
        if not kept:
            known = [item.id for item in findings if not item.withdrawn][-_KNOWN_SHOWN:]
            raise FindingNotFound(f"{case} has no finding {finding[:60]!r}; it has {', '.join(known) or 'none'}.")
        kept[:] = [replace(kept[0], withdrawn=kept[0].withdrawn or now())]
        return [kept[0] if item.id == finding else item for item in findings]

    _change(case, change)
    return kept[0]


def _change(case: str, change: Callable[[list[Finding]], list[Finding]]) -> bool:
    """Read, change and write while nobody else does; returns whether anything changed."""
    require_writable(case)
    path = case_folder(case) / "findings.json"
    with locked(path):
        before = read_findings(path, case)
        after = change(before)
        if after == before:
            return False
        write_document(path, {"format": FORMAT, "case": case, "findings": [_plain(item) for item in after]})
    return True


def _unordered(finding: Finding) -> Finding:
    """A finding with its citations in one order."""
    return replace(finding, evidence=tuple(sorted(finding.evidence, key=lambda item: item.id)))


def _plain(finding: Finding) -> dict[str, Any]:
    told = {key: value for key, value in vars(finding).items() if key in _FINDING_KEYS}
    return {**told, "evidence": [dict(vars(item)) for item in finding.evidence]}


def read_findings(path: Path, case: str) -> list[Finding]:
    """The findings that a file holds; none where there is no file.

    Raises:
        CaseDamaged: It is not the file of that case.
    """
    document = read_document(path, MAX_BYTES, CaseDamaged)
    if document is None:
        return []
    check_format(path, document, _KEYS)
    if document["case"] != case or len(document["findings"]) > MAX_FINDINGS:
        raise CaseDamaged(f"{path} is not the file of {case}: it names {document['case'][:40]!r}.")
    found = [_parsed(path, item) for item in document["findings"]]
    if len({item.id for item in found}) < len(found):
        raise CaseDamaged(f"{path} holds one finding twice.")
    return found


def _parsed(path: Path, item: Any) -> Finding:
    """One finding, if it is what was recorded."""
    try:
        cited = tuple(Cited(**{key: _text(value) for key, value in one.items()}) for one in item["evidence"])
        told = {key: _text(value) for key, value in item.items() if key != "evidence"}
        finding = Finding(evidence=cited, unchecked=(), **told)
    except (TypeError, LookupError, AttributeError) as error:
        raise CaseDamaged(f"{path}: {str(item)[:80]!r} is no finding.") from error
    expected = _id_of(finding.claim, [one.id for one in cited])
    if finding.id != expected or finding.basis not in BASES or item.keys() != _FINDING_KEYS:
        raise CaseDamaged(
            f"{path}: the finding {finding.id[:40]!r} was changed after it was recorded: {finding.claim[:80]!r}.",
            hint="Put the file back as it was, or remove that finding from it and record it again with `record_finding`.",
        )
    return finding


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _id_of(claim: str, evidence: list[str]) -> str:
    """The id of a claim with what it cites."""
    text = json.dumps([claim, sorted(set(evidence))])
    return f"finding-{hashlib.sha256(text.encode('ascii')).hexdigest()[:12]}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _stands(quoted: str, text: str) -> bool:
    """Whether a quoted value stands in a text as a whole: ``7`` does not stand in ``17`` or ``7.5``."""
    begin = r"(?<![\w.])" if quoted[:1].isalnum() else ""
    end = r"(?![\w]|\.\w)" if quoted[-1:].isalnum() else ""
    return bool(quoted) and re.search(f"{begin}{re.escape(quoted)}{end}", text) is not None
