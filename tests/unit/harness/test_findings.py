"""Findings: one for one claim and its evidence, noticed when changed, none lost."""

import json
import multiprocessing

import pytest

from opguard_harness.errors import CaseDamaged, CaseNotFound, ClaimRefused, FindingNotFound
from opguard_harness.workspace import findings
from opguard_harness.workspace.cases import open_or_resume
from opguard_harness.workspace.findings import Cited, finding_of, findings_of, record, unshown, withdraw

CITED = Cited("ev:0123456789ab/0/57", "opguard://evidence/ev:0123456789ab/0/57", "aten.mul.Tensor", "d" * 64)
OTHER = Cited("job:compare-1/answer", "opguard://evidence/job:compare-1/answer", "diverged", "e" * 64)


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return open_or_resume(tmp_path, "x")[0].id


@pytest.fixture
def path(case, tmp_path):
    return tmp_path / "state" / "opguard" / "cases" / case / "findings.json"


def test_the_same_claim_with_the_same_evidence_is_one_finding(case):
    first, changed = record(case, finding_of("The share differs.", "observed", (CITED, OTHER)))
    assert changed
    again, changed = record(case, finding_of(" The share differs. ", "observed", (OTHER, CITED)))
    assert again == first
    assert not changed
    assert len(findings_of(case)) == 1
    other, _ = record(case, finding_of("The share differs.", "observed", (CITED,)))
    assert other.id != first.id


def test_recording_again_changes_nothing_on_disk(case, path):
    record(case, finding_of("a", "observed", (CITED,)))
    before = path.read_bytes()
    assert record(case, finding_of("a", "observed", (CITED,)))[1] is False
    assert path.read_bytes() == before


def test_the_basis_said_last_counts(case):
    record(case, finding_of("a", "observed", (CITED,)))
    stored, changed = record(case, finding_of("a", "intervention tested", (CITED,)))
    assert changed
    assert [item.basis for item in findings_of(case)] == [stored.basis] == ["intervention tested"]


@pytest.mark.parametrize("basis", ["observed", "source inference", "intervention tested"])
def test_a_claim_without_evidence_is_refused(basis):
    with pytest.raises(ClaimRefused, match="cites none"):
        finding_of("a", basis, ())


def test_what_others_report_needs_no_evidence():
    assert finding_of("a", "externally reported", ()).evidence == ()


@pytest.mark.parametrize(("claim", "basis"), [("", "observed"), (" \n", "observed"), ("a", "guessed")])
def test_no_claim_and_no_basis_are_refused(claim, basis):
    with pytest.raises(ClaimRefused):
        finding_of(claim, basis, (CITED,))


def test_what_is_withdrawn_stays_on_disk_and_can_come_back(case):
    stored, _ = record(case, finding_of("a", "observed", (CITED,)))
    assert withdraw(case, stored.id).withdrawn
    assert withdraw(case, stored.id) == findings_of(case)[0]
    record(case, finding_of("a", "observed", (CITED,)))
    assert [item.withdrawn for item in findings_of(case)] == [""]
    with pytest.raises(FindingNotFound, match=stored.id):
        withdraw(case, "finding-000000000000")


def test_a_case_that_is_not_there_has_no_findings(case):
    for attempt in (lambda: findings_of("case-000000000000"), lambda: record("case-000000000000", finding_of("a", "observed", (CITED,)))):
        with pytest.raises(CaseNotFound):
            attempt()


def _first(told, **changes):
    return {**told, "findings": [{**told["findings"][0], **changes}, *told["findings"][1:]]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: b"{", "not JSON"),
        (lambda told: {**told, "format": 9}, "this release reads 1"),
        (lambda told: {**told, "case": "case-000000000000"}, "is not the file of"),
        (lambda told: {**told, "findings": [3]}, "is no finding"),
        (lambda told: {**told, "findings": told["findings"] * 2}, "one finding twice"),
        (lambda told: _first(told, claim="8 elements differ"), "changed after it was recorded: '8 elements differ'"),
        (lambda told: _first(told, id="finding-000000000000"), "'finding-000000000000' was changed"),
        (lambda told: _first(told, evidence=[]), "was changed"),
        (lambda told: _first(told, basis="certain"), "was changed"),
        (lambda told: _first(told, more="x"), "is no finding"),
        (lambda told: _first(told, claim=7), "is no finding"),
        (lambda told: _first(told, evidence=[{**told["findings"][0]["evidence"][0], "more": ""}]), "is no finding"),
        (lambda told: _first(told, evidence="ev:"), "is no finding"),
    ],
)
def test_what_was_changed_on_disk_is_noticed_and_stays(case, path, change, said):
    record(case, finding_of("7 elements differ", "observed", (CITED,)))
    changed = change(json.loads(path.read_text()))
    data = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    path.write_bytes(data)
    for attempt in (lambda: findings_of(case), lambda: record(case, finding_of("b", "observed", (CITED,))), lambda: withdraw(case, "x")):
        with pytest.raises(CaseDamaged, match=said):
            attempt()
    assert path.read_bytes() == data


def _record_many(case, prefix):
    for number in range(25):
        record(case, finding_of(f"{prefix} {number}", "observed", (CITED,)))


def test_two_servers_that_record_at_once_lose_nothing(case):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_record_many, args=(case, prefix)) for prefix in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert {item.claim for item in findings_of(case)} == {f"{prefix} {n}" for prefix in ("one", "two") for n in range(25)}


def _die_while_writing(case):
    import os

    os.fsync = lambda descriptor: os._exit(9)
    record(case, finding_of("never whole", "observed", (CITED,)))


def test_a_writer_that_is_killed_loses_nothing_and_holds_no_lock(case, path):
    record(case, finding_of("before", "observed", (CITED,)))
    victim = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(case,))
    victim.start()
    victim.join()
    assert victim.exitcode == 9
    record(case, finding_of("after", "observed", (CITED,)))
    assert [item.claim for item in findings_of(case)] == ["before", "after"]


def fill(case, path, count, cited=(CITED,)):
    """Write that many findings at once."""
    found = [finding_of(f"claim {number}", "observed", cited) for number in range(count)]
    path.write_text(json.dumps({"format": 1, "case": case, "findings": [findings._plain(item) for item in found]}))
    return found


def test_a_case_of_ten_thousand_findings_is_full_and_says_so(case, path):
    found = fill(case, path, findings.MAX_FINDINGS)
    assert record(case, found[5000]) == (found[5000], False)
    with pytest.raises(ClaimRefused, match="10000 findings already"):
        record(case, finding_of("one more", "observed", (CITED,)))
    assert len(findings_of(case)) == findings.MAX_FINDINGS


@pytest.mark.parametrize(
    ("claim", "shown", "missing"),
    [
        ("It is `7`.", "7 of 16", []),
        ("It is `7`.", "17 of 16", ["7"]),
        ("It is `7`.", "7.5", ["7"]),
        ("It is `7`.", "at 7.", []),
        ("`0.5` and `x`", "0.5 x", []),
        ("`.5`", "0.5", []),
        ("`reduction='sum'`", "f(a,\n  reduction='sum')", []),
        ("`a  b`", "a\nb", []),
        ("`a.b`", "aXb", ["a.b"]),
        ("no value", "", []),
        ("`` and `", "", []),
        ("`\N{SNOWMAN}`", "\N{SNOWMAN}", []),
        ("` `", "x", [" "]),
    ],
)
def test_a_quoted_value_stands_as_a_whole_in_what_is_cited(claim, shown, missing):
    assert unshown(claim, shown) == missing
