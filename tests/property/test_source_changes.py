"""Random edits of made-up functions: what only moved or got another name is no change, and what was changed is named exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.evidence.source import Kind, compare_sources
from tests.support.functions import CALLS, Made, functions, place


def compared(first: str, second: str):
    found = compare_sources(place(first), place(second))
    assert found.method == "structure", found.notes
    return found


def edited(made: Made, at: int, **changed) -> Made:
    statements = list(made.statements)
    statements[at] = replace(statements[at], **changed)
    return replace(made, statements=tuple(statements))


def real(found):
    return [change for change in found.changes if change.kind.is_real]


def formatting_and_comments_are_no_change(made):
    assert compared(made.text(), made.text(plain=False)).changes == ()


def new_names_and_another_order_are_no_change(made, data):
    order = data.draw(st.permutations(range(len(made.statements))))
    renamed = data.draw(st.booleans())
    found = compared(made.text(), made.text(made.names("w" if renamed else "v"), order))
    assert real(found) == []
    assert found.same
    moved = sum(change.kind is Kind.MOVED for change in found.changes)
    assert (moved > 0) <= (order != sorted(order))
    if renamed and order == sorted(order):
        pairs = {(change.before, change.after) for change in found.changes}
        assert pairs == {(f"v{number}", f"w{number}") for number in range(1, made.num_variables)}


def one_changed_constant_is_exactly_that(made, data):
    at = data.draw(st.integers(0, len(made.statements) - 1))
    constant = data.draw(st.integers(10, 99))
    renamed = data.draw(st.booleans())
    other = edited(made, at, constant=constant)
    found = compared(made.text(), other.text(other.names("w" if renamed else "v")))
    (change,) = real(found)
    assert (change.kind, change.before, change.after) == (Kind.ARGUMENT, str(made.statements[at].constant), str(constant))
    assert str(constant) in other.text().splitlines()[change.suspect[0] - 1]
    assert all(change.kind is Kind.RENAMED for change in found.changes if not change.kind.is_real)


def another_function_called_is_exactly_that(made, data):
    at = data.draw(st.integers(0, len(made.statements) - 1))
    call = data.draw(st.sampled_from([name for name in ("other.thing", "F.silu") if name not in CALLS]))
    (change,) = real(compared(made.text(), edited(made, at, call=call).text()))
    assert change.kind is Kind.EXPRESSION
    assert made.statements[at].call.rpartition(".")[2] in change.before
    assert call.rpartition(".")[2] in change.after


def a_statement_that_is_gone_is_named_and_one_that_is_new(made, data):
    at = data.draw(st.integers(0, len(made.statements) - 1))
    order = [number for number in range(len(made.statements)) if number != at]
    for first, second, kind in ((None, order, Kind.REMOVED), (order, None, Kind.INSERTED)):
        changes = real(compared(made.text(order=first), made.text(order=second)))
        assert [change.kind for change in changes] == [kind]
        told = changes[0].before or changes[0].after
        lines = made.statements[at].lines(made.names(), "")
        assert told.startswith(lines[0])


def any_two_functions_can_be_compared_and_the_other_way_round(first, second):
    there, back = compared(first.text(), second.text()), compared(second.text(), first.text())
    assert there.same == back.same
    assert (there.changes == ()) <= (first.text() == second.text())


CLAIMS = {
    "formatting_and_comments_are_no_change": (formatting_and_comments_are_no_change, functions()),
    "new_names_and_another_order_are_no_change": (new_names_and_another_order_are_no_change, functions(), st.data()),
    "one_changed_constant_is_exactly_that": (one_changed_constant_is_exactly_that, functions(), st.data()),
    "another_function_called_is_exactly_that": (another_function_called_is_exactly_that, functions(), st.data()),
    "a_statement_that_is_gone_is_named_and_one_that_is_new": (
        a_statement_that_is_gone_is_named_and_one_that_is_new,
        functions(),
        st.data(),
    ),
    "any_two_functions_can_be_compared_and_the_other_way_round": (
        any_two_functions_can_be_compared_and_the_other_way_round,
        functions(),
        functions(),
    ),
}


def check(claim: str, examples: int) -> None:
    test, *given_by = CLAIMS[claim]
    settings(max_examples=examples, deadline=None, derandomize=True)(given(*given_by)(test))()


@pytest.mark.parametrize("claim", CLAIMS)
def test_random_edits(claim):
    check(claim, 8)


@pytest.mark.full
@pytest.mark.parametrize("claim", CLAIMS)
def test_many_more_random_edits(claim):
    check(claim, 60)
