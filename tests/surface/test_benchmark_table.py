"""The README's matrix is the measured one of RESULTS.md, cell by cell."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TITLE = "\n## What this gives you that a skill, DebugMode or a loss curve does not\n"


def first_table(text):
    """Cells of the first table by (row title, column title)."""
    lines = text[text.index("\n| ") :].strip().splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: next_gap(lines)]]
    return {(row[0], name): value for row in rows for name, value in zip(head[1:], row[1:], strict=True)}


def next_gap(lines):
    return next(index for index, line in enumerate([*lines, ""]) if not line.startswith("|"))


def test_the_readme_shows_what_was_measured():
    shown = first_table((REPOSITORY / "README.md").read_text("utf-8").split(TITLE, 1)[1])
    measured = first_table((REPOSITORY / "tests" / "benchmarks" / "RESULTS.md").read_text("utf-8").split("<!-- measured: matrix -->", 1)[1])
    assert shown
    assert {key: measured.get(key) for key in shown} == shown
    assert {row for row, _ in shown} == {row for row, _ in measured}, "a row of the matrix is left out"
