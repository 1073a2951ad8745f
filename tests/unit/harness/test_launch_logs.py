"""The whole report out of recorded launch logs: what the rows say is what every form of the report says, and nothing else counts.

Each folder `launches-*` of the fixtures is a pair of logs that goes with `launch_log.PROGRAM`; sums are taken from the JSON itself.
"""

import json
from collections import Counter

import pytest

from opguard_core.certify.devicework.names import told_apart
from opguard_core.trace.reader import Run
from opguard_harness.__main__ import main
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.answer.schema import checked, checked_report
from opguard_harness.report.device_words import percent
from opguard_harness.report.markdown_page import case_page
from opguard_harness.report.page import html_page
from opguard_harness.report.short import short_answer
from opguard_harness.tools.comparisons import ANSWER_CHARS, FirstDifferenceArguments, first_difference
from opguard_harness.tools.differences import ExplainDifferenceArguments, explain_difference
from opguard_harness.tools.evidence import GetEvidenceArguments, get_evidence
from opguard_harness.workspace.reporting.files import gather
from tests.support import launch_log
from tests.support.launch_rows import CUSTOM, GELU, SPLIT, SPLIT_SUM
from tests.support.stored_case import stored_case

SIDES = ("reference", "suspect")
SEQ, AFTER, KIND, KERNEL, COUNT, TOUCHES = 0, 1, 3, 4, 6, 8


class Sums:
    """What one log says, counted from its JSON."""

    def __init__(self, path):
        found = json.loads(path.read_text())
        rows = found["rows"]
        self.times = {name: one["mean_ns"] for name, one in found["report"]["kernel_times"].items()}
        self.total = sum(row[COUNT] for row in rows)
        self.attributed = sum(row[COUNT] for row in rows if row[SEQ] is not None)
        unwatched = [row for row in rows if row[SEQ] is None or row[AFTER] is not None]
        self.touching = sum(row[COUNT] for row in unwatched if row[TOUCHES] is not False)
        self.kernels = Counter({(row[KIND], row[KERNEL]): 0 for row in rows})
        for row in rows:
            self.kernels[row[KIND], row[KERNEL]] += row[COUNT]
        own = sum(self.times.get(row[KERNEL], 0) * row[COUNT] for row in rows if row[SEQ] is not None)
        self.time_share = own / sum(self.times.get(row[KERNEL], 0) * row[COUNT] for row in rows)
        self.loose = {(row[KIND], row[KERNEL]) for row in rows if row[SEQ] is None}


@pytest.fixture(scope="module", params=sorted(launch_log.FIXTURES.glob("launches-*")), ids=lambda path: path.name)
def told(request, tmp_path_factory):
    """One case from a pair of logs, and what the logs say."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("case")
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        case = stored_case(folder, launches=tuple(launch_log.load(request.param / f"{side}.json") for side in SIDES))
        yield case, {side: Sums(request.param / f"{side}.json") for side in SIDES}, folder


def test_rows_come_back_from_the_trace_as_they_are(told):
    _, _, folder = told
    for side in SIDES:
        stored = launch_log.load(launch_log.GPT / f"{side}.json").stored
        assert sorted(map(repr, Run.open(folder / side).ranks[0].launches)) == sorted(map(repr, stored))


def test_the_answer_has_every_sum_of_the_logs(told):
    case, sums, _ = told
    work = checked(case.answer)["device_work"]
    for side in SIDES:
        rank, log = work[side]["0"], sums[side]
        assert (rank["launches"], rank["attributed"], rank["touching"]) == (log.total, log.attributed, log.touching)
        assert rank["kernels_total"] == len(log.kernels)
        assert {row["name"]: row["launches"] for row in rank["kernels"]}.items() <= {
            name: log.kernels[work] for work, name in told_apart(log.kernels).items()
        }.items()
        assert rank["time"]["share"] == pytest.approx(log.time_share)
        assert {row["name"] for row in rank["unattributed"]} == {told_apart(log.kernels)[one] for one in log.loose}
        assert rank["graph_replays"] == 4
    assert work["suspect"]["0"]["lost"] == 2
    assert [(lead["only"], lead["kernel"]) for lead in work["one_sided"]] == [
        ("suspect", CUSTOM),
        ("suspect", SPLIT_SUM),
        ("suspect", SPLIT),
    ]


def test_tools_tell_the_kernels_of_the_difference_and_stay_small(told):
    case, sums, _ = told
    found = plain(first_difference(FirstDifferenceArguments(case.comparison)))
    explained = plain(explain_difference(ExplainDifferenceArguments(case.comparison)))
    assert found["pivot"]["kernels"]["how"] == "another split"
    assert found["pivot"]["kernels"]["suspect"][0] == SPLIT
    assert explained["device_work"]["suspect"].startswith(percent(sums["suspect"].attributed / sums["suspect"].total))
    assert max(len(dumps(found)), len(dumps(explained))) <= ANSWER_CHARS
    evidence = plain(get_evidence(GetEvidenceArguments(case.cited("suspect", "kernels"))))
    assert [row["recorded"] for row in evidence["fact"]["kernels"]] == [SPLIT, SPLIT_SUM]
    reference = plain(get_evidence(GetEvidenceArguments(case.cited("reference", "kernels"))))
    assert [row["recorded"] for row in reference["fact"]["kernels"]] == [GELU]
    assert "another split of the sum" in "\n".join(short_answer(case.answer))


def test_the_report_has_it_as_json_markdown_and_html(told):
    case, sums, _ = told
    model = gather(case.case, case.comparison).model
    assert checked_report(model)["device_work"]["suspect"]["0"]["launches"] == sums["suspect"].total
    markdown, html = case_page(model).replace("\\", ""), html_page(model)
    shares = [percent(sums[side].attributed / sums[side].total) for side in SIDES]
    for text in (markdown, html):
        for word in (*shares, SPLIT, CUSTOM, "(replayed)", "graph replay"):
            assert word in text
    assert "## Device work" in markdown
    assert 'id="device"' in html


def test_the_page_of_a_trace_has_it(told, capsys):
    _, sums, folder = told
    for side in SIDES:
        assert main(["trace", str(folder / side)]) == 0
        page = capsys.readouterr().out
        assert f"device work with a boundary: {percent(sums[side].attributed / sums[side].total)} of {sums[side].total} launches" in page
        assert "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" in page
        assert main(["trace", str(folder / side), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["per_rank"][0]["device_work"]["launches"] == sums[side].total


def test_the_synthetic_logs_are_those_that_their_writer_writes(tmp_path):
    for side in SIDES:
        report, rows = launch_log.synthetic(suspect=side == "suspect")
        launch_log.save(tmp_path / side, launch_log.ABOUT.format(side), report, rows)
        assert (tmp_path / side).read_text() == (launch_log.GPT / f"{side}.json").read_text()
