"""The judge of the programs that must be found on a card: what it lets pass, and what it calls wrong. No card is needed."""

import copy

import pytest

from tests.gpu.must_find import PROGRAMS, cases, judge, wanted
from tests.gpu.rows import Rows

FLIP = cases(["gradient-bit-flip"])[0]
PLACE = {"file": "train.py", "line": 36, "text": "optimizer.step()", "statement": "optimizer.step()"}
PIVOT = {
    "step": 7,
    "phase": "optimizer",
    "operator": "aten._fused_adamw_.default",
    "slot": "in.1.4",
    "origin": "mutated",
    "origin_alternatives": [],
    "reference": PLACE,
    "suspect": PLACE,
    "forward": None,
}
ANSWER = {"verdict": "diverged", "pivot": PIVOT, "reasons": [], "contract": [], "prefix": {"pairs": 9}}


def changed(**changes):
    answer = copy.deepcopy(ANSWER)
    answer["pivot"] |= changes
    return answer


def faults(answer, mode="verify", case=FLIP, device="cuda"):
    return judge(wanted(case, mode, device), answer)[0]


def test_the_true_answer_passes_and_is_told_in_short():
    found, said = judge(wanted(FLIP, "verify", "cuda"), ANSWER)
    assert found == []
    assert said == "diverged; step 7 optimizer `aten._fused_adamw_.default` in.1.4 [mutated] at train.py:36"


@pytest.mark.parametrize(
    "changes",
    [{"step": 8}, {"phase": "backward"}, {"operator": "aten.mm.default"}, {"origin": "operator"}, {"suspect": None, "reference": None}],
)
def test_a_wrong_answer_does_not_pass(changes):
    assert len(faults(changed(**changes))) == 1


def test_a_mode_that_cannot_look_may_leave_it_open():
    assert faults(changed(origin="operator", origin_alternatives=["mutated"]), "full") == []
    assert faults(changed(origin="operator", origin_alternatives=["mutated"]), "verify") != []


def test_identical_needs_something_that_was_compared():
    case = cases(["identical-deterministic"])[0]
    assert faults({"verdict": "identical", "prefix": {"pairs": 3}}, case=case) == []
    assert faults({"verdict": "identical", "prefix": {"pairs": 0}}, case=case) != []
    assert faults(ANSWER, case=case) != []


def test_a_setting_that_explains_it_has_to_be_named():
    case = cases(["tf32-toggle"])[0]
    place = {**PLACE, "text": "model(batch)", "statement": "loss = (model(batch) - batch).pow(2).mean()"}
    first = {**PIVOT, "step": 0, "phase": "forward", "operator": "aten.addmm.default", "origin": "operator", "suspect": place}
    answer = {"verdict": "inconclusive", "pivot": None, "rank_firsts": [first], "reasons": [{"slug": "contract-conflict"}]}
    named = [{"key": "flags.float32_matmul_precision"}]
    assert faults({**answer, "contract": named}, case=case) == []
    assert len(faults({**answer, "contract": []}, case=case)) == 1
    assert len(faults({**answer, "contract": named, "reasons": []}, case=case)) == 1


def test_on_a_cpu_kernels_do_not_add_with_atomics():
    case = cases(["index-add"])[0]
    assert faults({"verdict": "identical", "prefix": {"pairs": 3}}, case=case, device="cpu") == []
    assert faults({"verdict": "identical", "prefix": {"pairs": 3}}, case=case, device="cuda") != []


@pytest.mark.parametrize("case", cases([]), ids=lambda case: case["slug"])
def test_the_places_that_are_true_are_in_the_programs(case):
    expected = case["expected"]
    texts = [*expected.get("text", ()), *(text for one in expected.get("by_mode", {}).values() for text in one.get("text", ()))]
    program = "".join(
        "".join((folder / expected["file"]).read_text().split())
        for folder in (PROGRAMS / case["slug"]).iterdir()
        if texts and folder.is_dir()
    )
    assert all("".join(text.split()) in program for text in texts)
    assert (PROGRAMS / case["slug"] / "suspect").is_dir() != bool(case.get("self"))


def test_rows_are_on_the_disk_at_once(tmp_path, capsys):
    rows = Rows(tmp_path / "new" / "rows.md")
    rows.head("Title", "How.", ("a", "b", "c"))
    rows.row(("x|y", 1234567.0, None))
    assert (tmp_path / "new" / "rows.md").read_text() == capsys.readouterr().out
    assert capsys.readouterr().out == ""
    assert (tmp_path / "new" / "rows.md").read_text().endswith("| x\\|y | 1,234,567 |  |\n")
