"""What a trace says is data: numbers out of their tables and words out of their vocabularies are refused."""

from dataclasses import replace

import numpy as np
import pytest

from opguard_core.align.loading import RankColumns
from opguard_core.align.vocabulary import Vocabulary
from opguard_core.errors import TraceFormatError
from tests.support.script import Script


def tables(write):
    script = Script()
    write(script)
    columns = RankColumns(script.close().ranks[0], Vocabulary())
    return columns, list(columns.trace.iter_windows())


def small(s):
    x = s.op("aten.randn.default", [], (4, 8), 1)
    s.op("aten.neg.default", [x], (4, 8), forward=0)


def broken(table, *, events=None, slots=None):
    return replace(
        table,
        events={**table.events, **{name: np.asarray(value) for name, value in (events or {}).items()}},
        slots={**table.slots, **{name: np.asarray(value) for name, value in (slots or {}).items()}},
    )


@pytest.mark.parametrize(
    ("events", "slots", "what"),
    [
        ({"user_frame": [0, 99]}, {}, "Unknown frame"),
        ({"library_frame": [-2, -1]}, {}, "Unknown frame"),
        ({"stack": [7, 0]}, {}, "Unknown stack"),
        ({"args": [0, 99]}, {}, "Unknown args"),
        ({"kind": [0, 99]}, {}, "Unknown kind"),
        ({}, {"dtype": [0, 0, 50]}, "Unknown dtype"),
        ({}, {"status": [-5, 0, 0]}, "Unknown status"),
        ({}, {"extent_lo": [500, 0, 0]}, "Extent ends before"),
        ({}, {"extent_hi": np.array([2**63, 8, 8], np.uint64)}, "Impossible extent_hi"),
        ({}, {"nbytes": np.array([2**63, 8, 8], np.uint64)}, "Impossible nbytes"),
    ],
)
def test_impossible_values_are_refused(events, slots, what):
    columns, (table,) = tables(small)
    with pytest.raises(TraceFormatError, match=what) as caught:
        columns.translate(broken(table, events=events, slots=slots))
    assert caught.value.facts["path"] == "memory"


def test_a_word_outside_its_vocabulary_is_refused():
    columns, (table,) = tables(lambda s: s.op("aten.neg.default", [], (4,), 1, phase="lunch"))
    with pytest.raises(TraceFormatError, match="Unknown phase"):
        columns.translate(table)


def test_links_that_point_nowhere_or_forward_are_no_links():
    columns, (table,) = tables(small)
    assert columns.translate(table).forward.tolist() == [-1, 0]
    for wrong in ([5, 1], [1, -7], [1, 2**62]):
        assert columns.translate(broken(table, events={"forward_seq": wrong})).forward.tolist() == [-1, -1]


def test_shapes_of_any_size_are_numbers_only():
    def write(s):
        s.event("aten.neg.default", [s._slot("in.0", "in", s.given((4,), 1))._replace(shape=f"{2**40},{2**40}")])

    columns, (table,) = tables(write)
    window = columns.translate(table)
    assert window.vocabulary.numel(window.shape)[0] == -1


def test_a_window_can_be_read_again_and_a_missing_one_is_said_to_be_gone():
    columns, _ = tables(small)
    assert len(columns.window(0)) == 2
    with pytest.raises(TraceFormatError, match="Window gone"):
        columns.window(5)


def test_equal_texts_get_equal_numbers_whatever_their_codes():
    vocabulary = Vocabulary()
    windows = []
    for order in (("aten.sin.default", "aten.cos.default"), ("aten.cos.default", "aten.sin.default")):
        script = Script()
        for operator in order:
            script.op(operator, [], (4,), 1, at=f"{operator}(x)")
        windows.append(next(RankColumns(script.close().ranks[0], vocabulary).iter_windows())[1])
    assert windows[0].operator.tolist() == windows[1].operator.tolist()[::-1]
    assert windows[0].site.tolist() == windows[1].site.tolist()[::-1]
    assert windows[0].path.tolist() == windows[1].path.tolist()[::-1]


def test_an_expression_without_text_is_known_by_its_line():
    columns, (table,) = tables(lambda s: [s.op("aten.neg.default", [], (4,), 1, at="", line=line) for line in (1, 1, 2)])
    sites = columns.translate(table).site.tolist()
    assert sites[0] == sites[1] != sites[2]


def test_events_without_frames_have_no_place():
    columns, (table,) = tables(lambda s: s.op("aten.neg.default", [], (4,), 1, at=None))
    window = columns.translate(table)
    assert (window.site.tolist(), window.path.tolist()) == ([0], [0])
