"""Scratch outputs: a difference there counts only if something shows it."""

from __future__ import annotations

from tests.support.script import Held, Script
from tests.unit.certify.conftest import slugs
from tests.unit.certify.test_origins import T, in_step


def workspace(content, *, consumer):
    """An operator with a second output that is a scratch buffer."""

    def change(s: Script, t: T) -> None:
        first = s.op("aten.mkldnn_rnn_layer.default", [t["h"]], (4, 8), 900, at="self.rnn(h)", line=30, more=[((16,), Held(content))])
        scratch = s.outs(first, 1)[0]
        scratch = type(scratch)(scratch.storage, (16,), Held(content))
        t["h"] = first
        if consumer is not None:
            consumer(s, t, scratch)

    return in_step(1, "after mm", change)


def test_a_workspace_that_nobody_reads_is_isolated(both):
    verdict = both(workspace(1, consumer=None), workspace(2, consumer=None))
    assert verdict.verdict in ("identical", "inconclusive")
    assert [pivot.suspect.text for pivot in verdict.isolated] == ["self.rnn(h)"] or slugs(verdict) == ["unresolved-difference"]


def test_a_workspace_whose_reader_agrees_is_isolated(both):
    def consumer(s, t, scratch):
        s.op("aten.mkldnn_rnn_layer_backward.default", [t["h"], scratch], (4, 8), 950, at="loss.backward()", phase="backward")
        s.free(scratch)

    verdict = both(workspace(1, consumer=consumer), workspace(2, consumer=consumer))
    assert verdict.verdict == "identical"
    assert [(pivot.suspect.text, pivot.slot) for pivot in verdict.isolated] == [("self.rnn(h)", "out.1")]


def test_a_workspace_that_alone_explains_a_difference_counts(both):
    def consumer(s, t, scratch):
        t["h"] = s.op("aten.add.Tensor", [t["h"], scratch], (4, 8), at="h + scratch", line=31)
        s.free(scratch)

    verdict = both(workspace(1, consumer=consumer), workspace(2, consumer=consumer))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.suspect.text, verdict.pivot.slot) == ("self.rnn(h)", "out.1")


def test_a_workspace_that_is_printed_counts(both):
    verdict = both(*[workspace(value, consumer=lambda s, t, scratch: s.read(scratch, at="print(scratch)")) for value in (1, 2)])
    assert verdict.verdict == "diverged"
    assert verdict.pivot.suspect.text == "self.rnn(h)"


def test_a_workspace_that_cannot_be_told_from_other_differences_is_inconclusive(both):
    def consumer(value):
        def read(s, t, scratch):
            names = [f"{name}{value}()" for name in "ab"]
            noise = [s.op("aten.full.default", [], (16,), value + at, at=name, trivial=True) for at, name in enumerate(names)]
            mixed = s.op("aten.stack.default", [scratch, *noise], (3, 16), at="torch.stack(all)", line=31)
            s.read(mixed, at="print(mixed)", line=32)

        return read

    verdict = both(workspace(1, consumer=consumer(10)), workspace(2, consumer=consumer(20)))
    assert verdict.verdict == "diverged" or slugs(verdict)[0] in ("low-confidence", "auxiliary-output")
    assert verdict.pivot is None or verdict.pivot.suspect.text != "self.rnn(h)"
