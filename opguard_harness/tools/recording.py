"""The call that records what was found, with its arguments complete."""

from __future__ import annotations

from opguard_harness.interface.declaration import Next


def recording(comparison: str, claim: str, evidence: list[str], basis: str = "observed") -> list[Next]:
    """Record a claim in the case that a comparison was made for; where there is none, open one.

    Args:
        comparison: Id of the comparison.
        claim: One sentence in words of ours.
        evidence: Ids that show it; without any there is nothing to record.
        basis: How it is known.
    """
    if not evidence:
        return []
    case = case_of(comparison)
    if case is None:
        return []  # it came out of a pack, to which nothing is added
    if not case:
        return [Next("open_case", {}, "a case keeps findings; record this one there")]
    given = {"case": case, "claim": claim, "evidence": evidence, **({} if basis == "observed" else {"basis": basis})}
    return [Next("record_finding", given, "keeps it, with its evidence checked")]


def case_of(comparison: str) -> str | None:
    """The newest case that a comparison was made for; empty if there is none, None if only cases that came out of packs have it."""
    from opguard_harness.workspace.cases import all_cases

    holding = [case for case in all_cases()[0] if any(noted.job == comparison for noted in case.jobs)]
    own = next((case.id for case in holding if not case.is_opened), "")
    return own or (None if holding else "")
