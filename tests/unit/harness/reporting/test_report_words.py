"""What a report says in words of its own: no more than the traces show, and the same thing everywhere."""

import copy

import pytest

from opguard_harness.report.markdown_page import case_page
from opguard_harness.report.page import html_page
from opguard_harness.workspace.findings import Finding
from opguard_harness.workspace.reporting.again import again
from opguard_harness.workspace.reporting.confidence import confidence
from opguard_harness.workspace.reporting.fed import ALONE, MOVED, meaning, told_slot
from opguard_harness.workspace.reporting.files import gather
from tests.support.stored_case import stored_case
from tests.unit.harness.reporting.test_report_page import Reader


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    base = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        (base / "root").mkdir()
        made = stored_case(base / "root")
        made.model = gather(made.case, made.comparison).model
        yield made


def said(model):
    return " ".join("".join(Reader(html_page(model)).texts).split())


@pytest.fixture
def model(found):
    return copy.deepcopy(found.model)


PAIR = {"reference": 5, "suspect": 7}


@pytest.mark.parametrize(
    ("seq", "fed", "lone", "means"),
    [
        (PAIR, [ALONE, MOVED], 3, "one side does work"),
        (PAIR, [MOVED], 0, "in another order"),
        (PAIR, [MOVED], 3, "in another order"),
        (PAIR, [], 0, "the same operators"),
        (PAIR, [], 1, "one side does work"),
        (PAIR, [], None, "one side does work"),
        ({"reference": None, "suspect": 7}, [MOVED], 0, "one side does work"),
    ],
)
def test_structure_means_what_the_rows_around_it_show(seq, fed, lone, means):
    pivot = {"origin": "structure", "operator": "aten.mul.Tensor", "slot": "out.0", "seq": seq, "reference": {}, "suspect": {}}
    told, look = meaning(pivot, [(what, {"seq": {"reference": 3, "suspect": None}}) for what in fed], lone)
    assert means in told
    assert ("extra or missing" in look) == (means == "one side does work")


def test_other_origins_mean_what_they_mean_everywhere():
    pivot = {"origin": "dtype", "operator": "aten.mul.Tensor", "slot": "in.0", "seq": PAIR}
    assert meaning(pivot, [(MOVED, {"seq": PAIR})], 0)[0] == "the same work is done in another precision"


def test_work_of_its_own_on_each_side_is_said_of_both():
    lone = [(ALONE, {"seq": {"reference": 3, "suspect": None}}), (ALONE, {"seq": {"reference": None, "suspect": 4}})]
    assert meaning({"origin": "structure", "seq": PAIR}, lone, 2)[0].startswith("each side")


def test_what_two_different_operators_read_is_not_counted_as_a_difference(model):
    pair = next(slot for slot in model["pivot"]["boundary"]["slots"] if slot["direction"] == "in")
    pair["how"] = "different"
    assert "1 more tensor of this operator differs" in said(model)
    model["pivot"]["boundary"]["reference"]["operator"] = "aten.triu.default"
    page = said(model)
    assert "more tensor of this operator" not in page
    assert "two different operators read it" in page


def row(operators, *slots):
    pairs = [{"how": how, "direction": name.split(".")[0], "reference": {"slot": name}, "suspect": {"slot": name}} for name, how in slots]
    return {"reference": {"operator": operators[0]}, "suspect": {"operator": operators[1]}, "slots": pairs}


@pytest.mark.parametrize(
    ("operators", "named", "told"),
    [
        (("aten.triu", "aten.le"), "in.0", "out.0"),
        (("aten.triu", "aten.le"), "out.0", "out.0"),
        (("aten.norm", "aten.norm"), "in.0", "in.0"),
    ],
)
def test_what_two_different_operators_read_is_not_told_as_the_difference(operators, named, told):
    assert told_slot({"slot": named}, row(operators, ("in.0", "different"), ("out.0", "different"))) == told
    assert told_slot({"slot": named}, row(operators, ("in.0", "different"), ("out.0", "equal"))) == named


def test_both_operators_are_named_where_they_are_two(model):
    model["pivot"]["boundary"]["reference"]["operator"] = "aten.triu.default"
    page, text = said(model), case_page(model)
    assert "aten.triu.default of the reference and aten.gelu.default of the suspect" in page
    assert "aten.triu.default / aten.gelu.default" in text.replace("\\", "")


def test_work_that_fed_the_pivot_in_another_order_is_named_near_the_top(model):
    ids = {side: model["pivot"]["boundary"][side]["id"] for side in ("reference", "suspect")}
    item = {
        "what": MOVED,
        "operator": "aten.unscale_.default",
        "slot": "",
        "results": "",
        "ids": ids,
        "reference": "a.py:1",
        "suspect": "b.py:2",
    }
    model["pivot"]["fed"] = [item]
    page = said(model)
    assert page.index("comes after it on the other: aten.unscale_.default (b.py:2)") < page.index("How sure")
    assert "What fed it" in page
    assert "It was fed by" in case_page(model)
    assert "What fed it" not in said({**model, "pivot": {**model["pivot"], "fed": []}})


def test_rows_that_are_before_the_pivot_on_one_side_only_are_marked(model):
    rows = model["trace"]["rows"]
    at = next(number for number, entry in enumerate(rows) if entry["what"] == ["pivot"])
    assert "before pivot on" not in said(model)
    rows[at + 1]["reference"]["seq"] = model["pivot"]["boundary"]["reference"]["seq"] - 1
    page = said(model)
    assert page.count("before pivot on reference") == 1
    assert "is marked: 1 on the reference" in page


def test_a_reader_whose_results_are_equal_is_no_recovery_where_the_difference_goes_on(model):
    model["spread"]["rejoined"] = model["spread"]["consumers"][0]
    assert model["spread"]["state"] or model["spread"]["reached"]
    assert "Other branches go on." in said(model)
    model["spread"].update(state=[], reached=[])
    assert "Other branches go on." not in said(model)


def test_reads_are_called_reads(model):
    total = model["spread"]["total"]
    assert f"are read {total:,} time" in said(model)
    assert f"{total:,} boundaries of that step" not in said(model)


def test_a_setting_that_is_not_arithmetic_is_not_called_harmless(model):
    model["contract"] = [{"key": "source.tree", "severity": "cosmetic", "reference": "a", "suspect": "b"}]
    page = said(model)
    assert "not an arithmetic setting" in page
    assert "no effect" not in page


def test_limits_say_where_the_comparison_ends_and_how_much_that_is(model):
    told = model["comparison"]["suspect"]
    assert told["reached"] == told["events"] - 1  # it differs in its last step; the end of the program comes after that
    told.update(reached=told["events"] // 2)
    page = said(model)
    assert f"ends with step {model['pivot']['step']}, that of the first difference." in page
    assert f"{told['reached']:,} of the suspect's {told['events']:,}." in page
    model["pivot"] = None
    assert "ends with step" not in said(model)


def test_confidence_names_what_speaks_against_it(found):
    confirmed = {"outcome": "same place", "verdict": "diverged", "transplant": None, "replays": {"same place": 1}}
    loose = Finding("f", "It is 5.", "observed", (), "", "", ("5",))
    points = confidence(found.answer, confirmed, {"reference": {"events": 1_000, "reached": 333}}, [(loose, [])])
    told = {item["text"]: item["level"] for item in points}
    assert [level for text, level in told.items() if text.startswith("Confirmed")] == ["good"]
    assert [level for text, level in told.items() if "single replay" in text] == ["note"]
    assert [level for text, level in told.items() if "33.3% of what the reference recorded" in text] == ["note"]
    assert [level for text, level in told.items() if text.startswith("1 findings say numbers")] == ["warn"]
    assert not [text for text in told if "benign" in text or "only one that fits" in text]


@pytest.mark.parametrize(
    ("outcome", "level", "text"),
    [
        ("cause", "good", "all that differs there goes through that place"),
        ("several causes", "warn", "2 places part without one following from the other"),
        ("not all", "warn", "something still differs in steps 3 to 4 (of the last one up to its update)"),
        ("not judged", "note", "could not be judged"),
        ("not possible", "note", "could not show whether"),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_confidence_says_whether_the_first_difference_is_all_that_is_wrong(found, outcome, level, text, elsewhere):
    places = [{"operator": "aten.mul.Tensor", "at": "train.py:7"}, {"operator": "aten.add.Tensor", "at": "train.py:8"}]
    moved = {"id": "job:confirm-0123456789ab/transplant", "outcome": outcome, "replays": 1, "put": 2, "places": places}
    moved |= {"steps": [3, 5], "why": "So it is.", "elsewhere": elsewhere}
    runs = {"reference": {"events": 1, "reached": 1}}
    told = {"outcome": "same place", "verdict": "diverged", "replays": {"same place": 1}}
    before, after = (confidence(found.answer, {**told, "transplant": one}, runs, []) for one in (None, moved))
    (more,) = (item for item in after if item not in before)
    assert more["level"] == ("note" if elsewhere else level)
    assert (text in more["text"] and more["text"].endswith("So it is.")) is not elsewhere
    assert ("at another place" in more["text"]) is elsewhere


@pytest.mark.parametrize("newest", ["same place", "not reproduced", "another place"])
def test_confidence_says_how_all_replays_ended(found, newest):
    told = {"outcome": newest, "verdict": "diverged", "transplant": None, "replays": {"not reproduced": 1, "same place": 2}}
    points = {item["text"]: item["level"] for item in confidence(found.answer, told, {"reference": {"events": 1, "reached": 1}}, [])}
    assert points["There are 3 replays: not reproduced 1, same place 2."] == "warn"
    assert not any("single replay" in text for text in points)


def test_a_comparison_of_traces_offers_what_made_them(found):
    calls = again(found.comparison, found.case.id, found.answer, None, None)
    assert [call["what"] for call in calls] == ["compare the two stored traces again", "check this report once more"]
    told = [call for call in found.model["again"] if call["what"].startswith("run the ")]
    assert [call["what"].split("'")[0] for call in told] == ["run the reference", "run the suspect"]
    assert all(call["command"].startswith("cd ") for call in told)


def test_frames_of_a_module_call_are_left_out_and_counted(model):
    frame = {"file": "torch/nn/modules/module.py", "line": 1, "function": "Module._call_impl", "text": "x()", "user": False, "source": None}
    model["frames"].append(frame)
    for side in ("reference", "suspect"):
        model["stacks"][model["pivot"]["boundary"][side]["stack"]].insert(0, len(model["frames"]) - 1)
    page = said(model)
    assert "in Module._call_impl" not in page
    assert "frames of PyTorch's module call are left out" in page


def test_a_cited_file_says_what_it_holds(model):
    one = {"id": "job:confirm-0123456789ab/damage", "quote": "confirm-0123456789ab: 3863 characters", "digest": ""}
    model["findings"] = [{"id": "finding-1", "claim": "c", "basis": "observed", "recorded": "", "unchecked": [], "evidence": [one]}]
    assert "3863 characters: what differs in the bytes" in said(model)


def test_words_of_the_trade_are_explained(model):
    page = said(model)
    for word in ("boundary", "pivot", "origin", "bag64", "ULP"):
        assert word in page
    assert "A digest that does not depend on the order" in page
