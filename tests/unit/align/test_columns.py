"""What counts as read, written and the same bytes twice."""

from dataclasses import replace

from tests.support.script import Held


def names(window, rows):
    return [window.text(int(window.slot[row])) for row in rows]


def test_outputs_leave_out_a_returned_alias_of_what_was_written(window):
    def write(s):
        x = s.given((4,), 1)
        slots = [s._slot("in.0", "in", x), s._slot("mut.0", "mut", x.holding(2)), s._slot("out.0", "out", x.holding(2))]
        s.event("aten.add_.Tensor", slots)

    found = window(write)
    assert names(found, found.outputs(0)) == ["mut.0"]
    assert names(found, found.reads(0)) == ["in.0"]


def test_what_is_merely_overwritten_is_not_read(window):
    def write(s):
        x, y = s.given((4,), 1), s.given((4,), 2)
        s.op("aten.copy_.default", [x, y], (4,), into=x)
        s.op("aten.add_.Tensor", [x, y], (4,), into=x)
        s.op("aten.mul.out", [y, x], (4,), into=x)

    found = window(write)
    assert names(found, found.reads(0)) == ["in.1"]
    assert names(found, found.reads(1)) == ["in.0", "in.1"]
    assert names(found, found.reads(2)) == ["in.0"]


def test_memory_that_an_outside_call_is_given_to_fill_is_not_read(window):
    def write(s):
        x, y = s.given((4,), 1), s.given((4,), 2, status="uninitialised")
        s.op("extension.my_ext.scale", [x, y], (4,), into=replace(y, status="probed"))
        s.op("triton.copy_", [x, y.holding(3)], (4,), into=replace(x, status="probed"))
        s.op("extension.my_ext.add_out", [x, y], (4,), into=replace(x, status="probed"))

    found = window(write)
    assert names(found, found.reads(0)) == ["in.0"]
    assert names(found, found.reads(1)) == names(found, found.reads(2)) == ["in.0", "in.1"]


def test_another_part_of_an_overwritten_storage_is_read(window):
    def write(s):
        x = s.given((8,), 1)
        s.op("aten.copy_.default", [x.view((4,), 2, 0, 16), x.view((4,), 3, 16, 32)], (4,), into=x.view((4,), 3, 0, 16))

    found = window(write)
    assert names(found, found.reads(0)) == ["in.1"]


def test_slots_whose_shape_alone_is_used_are_not_read(window):
    def write(s):
        s.op("aten.zeros_like.default", [s._tensor_of_shape((4,))], (4,), 0)

    def give(s):
        from dataclasses import replace

        s._tensor_of_shape = lambda shape: replace(s.given(shape, 1), status="metadata")
        write(s)

    found = window(give)
    assert len(found.reads(0)) == 0


def test_unknown_and_trivial_content_tells_nothing(window):
    def write(s):
        s.op("aten.empty.memory_format", [], (4,), 1, status="uninitialised")
        s.op("aten.ones.default", [], (4,), 1, trivial=True)
        s.op("aten.randn.default", [], (4,), 1)
        s.op("aten.sum.default", [], (), Held(1))

    found = window(write)
    assert found.known.tolist() == [False, True, True, True]
    assert found.telling.tolist() == [False, False, True, False]


def test_markers_and_state_are_not_comparable(window):
    def write(s):
        s.marker("opguard.run.begin")
        s.op("aten.randn.default", [], (4,), 1)
        s.state(param__w=s.given((4,), 1))

    assert window(write).comparable.tolist() == [False, True, False]


def test_a_window_without_events_has_empty_columns(window):
    found = window(lambda s: s.marker("opguard.run.begin"))
    assert len(found) == 1
    assert found.overwrites.tolist() == [False]
    assert len(found.read_rows) == len(found.output_rows) == 0
