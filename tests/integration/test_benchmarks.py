"""Every section of the benchmarks runs, at sizes that take a second; what was measured is not looked at."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.benchmarks import capture, matrix  # noqa: E402
from tests.benchmarks.__main__ import main, run  # noqa: E402
from tests.benchmarks.detectors import Alarm, Call, OpGuard, TorchDebugMode  # noqa: E402
from tests.benchmarks.matrix import Truth, criteria, right_at_last, words  # noqa: E402
from tests.benchmarks.plants import LSB, PLANTS, KernelFault, damaged, flip, replaced_kernels, swap_rows  # noqa: E402
from tests.benchmarks.report import Criterion, Section  # noqa: E402
from tests.benchmarks.training import Shape  # noqa: E402

RESULTS_ROWS = 2  # head and rule of a Markdown table


def body(markdown):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()[RESULTS_ROWS:]]


@pytest.mark.parametrize("name", ["trace", "fingerprint", "callsites"])
def test_a_section_measures_something(tmp_path, name):
    section = run(name, tmp_path, lambda text: None, quick=True)
    assert all(body(table) for table in section.tables)
    assert all(criterion.measured > 0 for criterion in section.criteria)


def test_capture_is_timed_bare_in_every_mode_and_under_debugmode(tmp_path):
    section = capture.measure(tmp_path, progress=lambda text: None, shape=Shape(1, 64, 64, 16, 2), rounds=1, steps=1, widths=())
    rows = body(section.tables[0])
    assert [row[0] for row in rows] == [capture.TITLES.get(name, name) for name in capture.VARIANTS]
    assert rows[0][2] == "1.00"
    assert [criterion.limit for criterion in section.criteria] == [0.45, 48, 48]


def test_a_ratio_is_taken_within_its_round():
    times = capture.Times(("bare", "verify"))
    times.cpu = {"bare": [[1.0, 1.0, 9.0], [10.0], [2.0]], "verify": [[2.0, 2.0], [30.0], [5.0]]}
    assert times.ratio("verify") == 2.5


def test_our_share_is_of_what_debugmode_adds():
    assert capture.share_of(1.9, 3.0) == pytest.approx(0.45)
    assert capture.share_of(1.0, 3.0) == 0


def test_the_command_prints_all_bounds_and_says_in_its_exit_code_whether_they_hold(monkeypatch, tmp_path, capsys):
    results = tmp_path / "RESULTS.md"
    results.write_text("# R\n", "utf-8")
    monkeypatch.setattr("tests.benchmarks.__main__.RESULTS", results)
    for bound, code in ((2.0, 0), (1.0, 1)):
        section = Section("how", ["| t |"], [Criterion("c", 1.5, bound)])
        monkeypatch.setattr("tests.benchmarks.__main__.run", lambda *args, section=section, **options: section)
        assert main(["--only", "trace", "align"]) == code
        shown = capsys.readouterr().out
        assert all(part in shown for part in ("## trace", "## align", "## all criteria"))
        text = results.read_text("utf-8")
        assert text.count("| c | 1.50 |") == 2
        assert main(["--only", "trace", "--no-write", "--quick"]) == code
        assert results.read_text("utf-8") == text


# The matrix, its words and its bounds.

ORDER = tuple(Call(f"aten::{name}", 0) for name in ("addmm", "view", "split", "gelu", "mm"))
FAULT = Truth(ORDER[0], ORDER[3], 1)


@pytest.mark.parametrize(
    ("alarm", "truth", "said"),
    [
        (Alarm("quiet"), None, "quiet"),
        (Alarm("quiet"), FAULT, "nothing"),
        (Alarm("raises"), None, "raises"),
        (Alarm("inconclusive"), FAULT, "inconclusive"),
        (Alarm("alarm", at=ORDER[2], order=ORDER, mismatches=3), None, "3 false mismatches"),
        (Alarm("alarm", at=ORDER[0], order=ORDER), FAULT, "exact operator"),
        (Alarm("alarm", at=ORDER[1], order=ORDER), FAULT, "first consumer"),
        (Alarm("alarm", at=ORDER[3], order=ORDER), FAULT, "first consumer (+3)"),
        (Alarm("alarm", at=ORDER[4], order=ORDER), FAULT, "4 records late"),
        (Alarm("alarm", at=ORDER[0], order=ORDER), Truth(ORDER[1], None, 1), "1 record early"),
        (Alarm("alarm", at=ORDER[3], order=ORDER), Truth(None, ORDER[3], 1), "first consumer"),
        (Alarm("alarm", at=ORDER[4], order=ORDER), Truth(ORDER[1], None, 1), "3 records late"),
        (Alarm("alarm", step=1), FAULT, "exact step"),
        (Alarm("alarm", step=3), FAULT, "2 steps late"),
    ],
)
def test_a_cell_says_where_an_alarm_lies_from_the_fault(alarm, truth, said):
    assert words(alarm, truth) == said


def test_an_early_late_or_missing_answer_breaks_the_bound_and_a_false_alarm_too():
    names = ["loss curve", "verify", "trusted"]
    rows = [
        ("a fault", "nothing", "exact operator", "9 records late; its replay: exact operator"),
        ("another", "nothing", "3 records late", "9 records late"),
        ("none: equal runs", "quiet", "2 false mismatches", "quiet"),
    ]
    verify, trusted = criteria(rows, names)
    assert (verify.measured, trusted.measured) == (2, 1)
    assert not verify.holds
    assert all(criterion.holds for criterion in criteria(rows[:1], names))
    assert not right_at_last("none: x", "raises")


def test_a_replaced_kernel_is_wrong_once_and_neither_side_of_the_dispatcher_is_told():
    watched = TorchDebugMode("norm", "norm", inputs=True)
    fault = KernelFault("aten::gelu", 1, "out.0", damaged(lambda out: flip(out, 3, LSB)))
    x = torch.linspace(-1, 1, 64)
    with replaced_kernels({"aten::gelu"}) as kernels:
        runs = []
        for armed in (None, fault):
            kernels.arm(armed, 0)
            with watched.watch() as logs:
                results = [torch.nn.functional.gelu(x) for _ in range(3)]
            runs.append((results, [str(log) for log in logs], [result._version for result in results]))
        assert kernels.struck == 1
    (right, log, versions), (wrong, other_log, other_versions) = runs
    assert [int((a != b).sum()) for a, b in zip(right, wrong, strict=True)] == [0, 1, 0]
    told = [[line.partition("#")[0] for line in lines] for lines in (log, other_log)]
    assert (told[0], versions) == (told[1], other_versions), "only the bytes differ"
    assert torch.equal(torch.nn.functional.gelu(x), right[1]), "the kernel is back"


def test_rows_are_swapped_without_an_operator():
    matrix_34 = torch.arange(12.0).reshape(3, 4)
    swap_rows(matrix_34, 0, 2)
    assert matrix_34[:, 0].tolist() == [8, 4, 0]
    assert matrix_34._version == 0


def test_the_matrix_runs_every_column_and_reads_the_truth_off_a_trace(tmp_path):
    columns = [matrix.detectors(())[1], OpGuard("verify"), OpGuard("sentinel")]
    with replaced_kernels({"aten::gelu"}) as kernels:
        grid = matrix.Matrix(tmp_path, kernels, columns, Shape(2, 16, 16, 4, 1), steps=2)
        found, quiet = grid.row(PLANTS[0]), grid.row(PLANTS[7])
    assert (found["verify"], found["sentinel"]) == ("exact operator", "exact step; its replay: exact operator")
    assert (quiet["verify"], quiet["sentinel"], quiet[columns[0].name]) == ("quiet", "quiet", "raises")
    assert all(cost.steps and cost.judging for cost in grid.costs.values())
