"""The report of the benchmarks: bounds, tables, sections between markers. No number here was measured."""

import pytest

from tests.benchmarks import align
from tests.benchmarks.__main__ import SECTIONS, quick_options
from tests.benchmarks.report import RESULTS, Criterion, Section, cell, criteria_table, replace_section, table


@pytest.mark.parametrize(
    ("measured", "limit", "at_least", "holds"),
    [(0.45, 0.45, False, True), (0.4501, 0.45, False, False), (3.0, 3.0, True, True), (2.9, 3.0, True, False)],
)
def test_a_bound_holds_up_to_and_including_its_limit(measured, limit, at_least, holds):
    assert Criterion("x", measured, limit, at_least=at_least).holds is holds


def test_a_bound_that_does_not_hold_is_shown_as_such():
    shown = criteria_table([Criterion("time", 11.0, 10.0, "s"), Criterion("rate", 4.0, 3.0, "GB/s", at_least=True)])
    assert shown.splitlines()[2:] == ["| time | 11.0 s | at most 10.0 s | **no** |", "| rate | 4.00 GB/s | at least 3.00 GB/s | yes |"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (99.94, "99.9"), (1.005, "1.00"), (0.0004, "0.000"), (12345, "12,345"), (None, ""), ("a|b", "a\\|b")],
)
def test_a_cell_has_three_digits_at_most(value, text):
    assert cell(value) == text


def test_a_table_has_a_row_for_each_row():
    assert table(("a", "b"), [(1, 2.0), ("x", None)]) == "| a | b |\n|---|---|\n| 1 | 2.00 |\n| x |  |"


def test_a_section_is_replaced_between_its_markers_and_nothing_else_changes():
    blocks = [f"<!-- measured: {name} -->\n{body}\n<!-- /measured: {name} -->" for name, body in (("one", "old"), ("two", "kept"))]
    before = "# R\n\nwords\n\n{}\n\nmore\n\n{}\n".format(*blocks)
    after = replace_section(before, "one", "new \\1 text")
    assert after == before.replace("old", "new \\1 text")
    assert replace_section(after, "one", "old") == before


def test_a_section_without_markers_is_added_at_the_end():
    text = replace_section("# R\n", "one", "body")
    assert text.endswith("## One\n\n<!-- measured: one -->\nbody\n<!-- /measured: one -->\n")
    assert replace_section(text, "one", "other").count("measured: one") == 2


def test_a_section_shows_its_machine_its_method_its_tables_and_its_bounds():
    shown = Section("how", ["| t |"], [Criterion("c", 1.0, 2.0)]).markdown("facts")
    assert [shown.index(part) for part in ("facts", "how", "| t |", "criterion")] == sorted(
        shown.index(part) for part in ("facts", "how", "| t |", "criterion")
    )


def judged(events, whole_s, peak_mib=100.0):
    return {"events": events, "whole_s": whole_s, "peak_mib": peak_mib}


def test_the_aligner_is_held_to_time_memory_and_linear_growth():
    time_s, memory, *growth = align.criteria([judged(200, 2.0), judged(2000, 10.0), judged(20_000, 130.0, 3000.0)])
    assert (time_s.measured, time_s.holds) == (130.0, False)
    assert (memory.measured, memory.holds) == (3000.0, False)
    assert [round(one.measured, 3) for one in growth] == [0.5, 1.3]
    assert [one.holds for one in growth] == [True, False]


def test_results_have_a_place_for_every_section():
    text = RESULTS.read_text("utf-8")
    for name in SECTIONS:
        assert text.count(f"<!-- measured: {name} -->") == 1
        assert text.count(f"<!-- /measured: {name} -->") == 1


def test_the_aligner_is_judged_in_a_process_of_its_own_at_every_size(tmp_path):
    told = []
    section = align.measure(tmp_path, progress=told.append, **quick_options("align"))
    rows = section.tables[0].splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 500 x 500", "identical"], ["| 1,000 x 1,000", "identical"]]
    assert [criterion.holds for criterion in section.criteria[:2]] == [True, True], "a small run is judged within the bounds of a large one"
    assert len(told) == 4


def test_the_largest_resident_size_is_that_of_this_process():
    before = align.peak_mebibytes()
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
    assert align.peak_mebibytes() >= max(before, 64)
