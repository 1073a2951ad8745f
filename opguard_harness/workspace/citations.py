"""Citations of findings: resolved when a finding is recorded, and resolved again, value by value, before a report says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_harness.access.untrusted import one_line
from opguard_harness.errors import ClaimRefused
from opguard_harness.interface.declaration import Evidence
from opguard_harness.workspace.adopting import adopt
from opguard_harness.workspace.belonging import Belonging
from opguard_harness.workspace.cases import Case, require_case
from opguard_harness.workspace.facts import Fact, resolve
from opguard_harness.workspace.findings import (
    MAX_CITED,
    OBSERVED,
    Cited,
    Finding,
    loose_numbers,
    quoted_in,
    unchecked_numbers,
    unshown,
)

QUOTE_CHARS = 200
_CLAIM_CHARS = 80


@dataclass(frozen=True)
class Unchecked:
    """What a report may not say.

    Attributes:
        finding: Id of the finding.
        claim: Its claim, in brief.
        evidence: The id that does not hold; empty if it is the claim that says more than its evidence.
        why: What is wrong.
    """

    finding: str
    claim: str
    evidence: str
    why: str

    def __str__(self) -> str:
        """One sentence that names claim and id."""
        cited = f" cites {self.evidence}" if self.evidence else ""
        return f"{self.finding} ({self.claim}){cited}: {self.why}"


def cite_all(case: Case, claim: str, evidence: list[str], basis: str) -> tuple[Cited, ...]:
    """Look up what a claim cites.

    Args:
        case: The case that it is about.
        claim: The claim; what it has in backticks has to stand in one of the records.
        evidence: Ids, each once.
        basis: What it rests on; what is observed quotes at least one value, else no word of it could be checked.

    Raises:
        EvidenceError: An id is none, or does not resolve now.
        ClaimRefused: It cites too much, or what no run of the case recorded, quotes nothing, or what stands in nothing that it cites.
    """
    if len(evidence) > MAX_CITED:
        raise ClaimRefused(f"The claim cites {len(evidence)} records; at most {MAX_CITED}.", hint="Record two findings.")
    if basis == OBSERVED and evidence and not quoted_in(claim):
        raise ClaimRefused(
            "A claim that is observed quotes at least one value of what it cites; this one quotes none, so no word of it could be checked.",
            hint="Put values that the records show into backticks, or say what it rests on: basis 'source inference'.",
        )
    facts = [resolve(item) for item in evidence]
    labels = _labels(case, facts)
    if not all(labels.values()) and adopt(case, [name for name, label in labels.items() if not label]):
        labels = _labels(require_case(case.id), facts)
    strange = next((name for name, label in labels.items() if not label), "")
    if strange:
        raise ClaimRefused(
            f"{strange} was recorded by no job of {case.id}, so it shows nothing about this case.",
            hint="Make the call whose result it is from once more, with the same arguments and this `case`: what is done is not run "
            "again, only noted in the case.",
        )
    missing = unshown(claim, shown(facts)) if facts else []
    if missing:
        raise ClaimRefused(
            f"The claim quotes `{missing[0][:80]}`, and that stands in none of the {len(facts)} records it cites.",
            hint="Cite the record that shows it, as `get_evidence` gives it, or say it without backticks.",
        )
    return tuple(Cited(fact.id, fact.uri, quote_of(labels[fact.id], fact), fact.digest) for fact in facts)


def unchecked(finding: Finding, known: dict[str, Fact | OpGuardError]) -> tuple[str, ...]:
    """Numbers in a finding's claim that stand in none of the records it cites.

    Args:
        finding: The finding.
        known: What was resolved just now; added to.
    """
    if not loose_numbers(finding.claim):
        return ()
    for item in finding.evidence:
        if item.id not in known:
            known[item.id] = _resolved(item.id)
    facts = [fact for item in finding.evidence if isinstance(fact := known[item.id], Fact)]
    return unchecked_numbers(finding.claim, shown(facts))


def recheck(finding: Finding, belonging: Belonging, known: dict[str, Fact | OpGuardError]) -> tuple[list[Evidence], list[Unchecked]]:
    """Resolve all that a finding cites again, and compute its quoted values again.

    Args:
        finding: The finding.
        belonging: Of its case.
        known: What was resolved just now for other findings; added to.

    Returns:
        What it cites as it is now, and what does not hold any more.
    """
    brief = one_line(finding.claim, _CLAIM_CHARS)
    facts: list[Fact] = []
    cited: list[Evidence] = []
    wrong: list[Unchecked] = []
    for item in finding.evidence:
        if item.id not in known:
            known[item.id] = _resolved(item.id)
        fact = known[item.id]
        if isinstance(fact, OpGuardError):
            wrong.append(Unchecked(finding.id, brief, item.id, fact.message))
            continue
        facts.append(fact)
        label = belonging.label(item.id)
        quote = quote_of(label, fact)
        cited.append(Evidence(fact.id, fact.uri, quote))
        if not label:
            wrong.append(Unchecked(finding.id, brief, item.id, "no job of the case recorded it"))
            continue
        if quote != item.quote:
            wrong.append(Unchecked(finding.id, brief, item.id, f"it reads {quote!r} now, and {item.quote!r} was recorded"))
        elif fact.digest != item.digest:
            wrong.append(
                Unchecked(finding.id, brief, item.id, f"its digest is {fact.digest[:12]} now, and {item.digest[:12]} was recorded")
            )
    if not wrong and facts:
        missing = unshown(finding.claim, shown(facts))
        wrong += [Unchecked(finding.id, brief, "", f"`{quoted[:80]}` stands in nothing that it cites") for quoted in missing]
    return cited, wrong


def _labels(case: Case, facts: list[Fact]) -> dict[str, str]:
    """Who recorded each fact."""
    belonging = Belonging(case)
    return {fact.id: belonging.label(fact.id) for fact in facts}


def quote_of(label: str, fact: Fact) -> str:
    """Who recorded a fact, and the fact, in one line."""
    return one_line(f"{label}: {fact.quote}", QUOTE_CHARS)


def _resolved(evidence: str) -> Fact | OpGuardError:
    """The record that an id names, or why there is none."""
    try:
        return resolve(evidence)
    except OpGuardError as error:
        return error


def shown(facts: list[Fact]) -> str:
    """All text and numbers of some records."""
    return "\n".join(text for fact in facts for text in (fact.id, fact.quote, *_leaves(fact.data)))


def _leaves(value: Any) -> Iterator[str]:
    """The texts, numbers and names in a record."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        yield ", ".join(str(item) for item in value if isinstance(item, (str, int, float)))
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield str(value)
