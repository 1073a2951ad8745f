"""Device work of calls that have no number yet: exchanged when they have one, held until then, nobody's if they turn out to have none."""

from __future__ import annotations

import numpy as np

from opguard_core.intercept.shim import TOKENS
from opguard_core.intercept.tokens import MOST_KNOWN, Seen, Tokens

NULL = -1


def seen(*rows):
    """Rows of (seq, touches); the kernel's number tells them apart."""
    columns = {name: np.zeros(len(rows), np.int64) for name in Seen._fields}
    columns["seq"] = np.array([seq for seq, _ in rows], np.int64)
    columns["touches"] = np.array([touches for _, touches in rows], np.int8)
    columns["kernel"] = np.arange(len(rows), dtype=np.int32)
    columns["after"] = np.full(len(rows), NULL, np.int64)
    return Seen(**columns)


def rows(found):
    return (
        []
        if found is None
        else [tuple(int(column[at]) for column in (found.seq, found.after, found.touches)) for at in range(len(found.seq))]
    )


def test_rows_without_tokens_pass_as_they_are():
    batch = seen((3, NULL), (NULL, 1))
    assert Tokens(NULL).exchanged(batch) is batch
    assert Tokens(NULL).exchanged(None) is None


def test_a_call_that_has_ended_gives_its_number_and_one_that_has_no_event_leaves_its_work_to_nobody():
    tokens = Tokens(NULL)
    tokens.became(TOKENS, 5, 4)
    tokens.became(TOKENS + 1, None, 8)
    assert rows(tokens.exchanged(seen((TOKENS, 1), (2, NULL), (TOKENS + 1, 1), (TOKENS, 0)))) == [
        (5, NULL, NULL),
        (2, NULL, NULL),
        (NULL, 8, 1),
        (5, NULL, NULL),
    ]
    assert tokens.num_apart == 1


def test_work_of_a_call_that_still_runs_is_held_and_comes_first_later():
    tokens = Tokens(NULL)
    assert rows(tokens.exchanged(seen((TOKENS, 1), (2, NULL)))) == [(2, NULL, NULL)]
    assert rows(tokens.exchanged(None)) == []
    tokens.became(TOKENS, 9, 8)
    assert rows(tokens.exchanged(seen((3, NULL)))) == [(9, NULL, NULL), (3, NULL, NULL)]


def test_at_the_end_nothing_is_held_any_more():
    tokens = Tokens(NULL)
    tokens.exchanged(seen((TOKENS, 0)))
    tokens.give_up()
    assert rows(tokens.exchanged(None)) == [(NULL, NULL, 0)]


def test_what_ended_long_ago_is_forgotten_and_its_work_is_nobodys():
    tokens = Tokens(NULL)
    for number in range(MOST_KNOWN + 1):
        tokens.became(TOKENS + number, number, 0)
    assert rows(tokens.exchanged(seen((TOKENS, 1), (TOKENS + MOST_KNOWN, 1)))) == [(NULL, NULL, 1), (MOST_KNOWN, NULL, NULL)]
