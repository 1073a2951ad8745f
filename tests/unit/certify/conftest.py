"""A tiny training written by hand, and the verdict over two variants of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opguard_core.certify.compare import compare
from opguard_core.certify.verdict import Verdict
from tests.support.memory import MemoryTrace
from tests.support.script import Script, Tensor

Twist = Callable[[Script, str, dict[str, Tensor]], None]
Judge = Callable[..., Verdict]


def train(s: Script, *, steps: int = 2, twist: Twist | None = None) -> None:
    """Forward, loss, backward, update; ``twist`` is called before each named place and may change what follows."""
    w = s.given((8, 8), 2, name="param:w")
    ema = s.given((8, 8), 3)
    mask = s.op("aten.ones.default", [], (8, 8), 4, at="make_mask()", phase="data")
    for step in range(steps):
        t = {"w": w, "mask": mask, "ema": ema, "step": s.given((), step)}

        def at(place: str, t: dict[str, Tensor] = t) -> None:
            if twist is not None:
                twist(s, place, t)

        t["x"] = s.given((4, 8), 100 + step)
        at("batch")
        t["h"] = s.op("aten.mm.default", [t["x"], t["w"]], (4, 8), at="x @ self.w", line=3)
        at("after mm")
        t["a"] = s.op("aten.gelu.default", [t["h"]], (4, 8), at="F.gelu(h)", line=4, args="approximate=none")
        at("after gelu")
        t["d"] = s.op("aten.bernoulli.default", [t["a"]], (4, 8), at="self.drop(a)", line=5, rng=("cpu", 500 + step))
        t["loss"] = s.op("aten.sum.default", [t["d"]], (), at="d.sum()", line=6)
        s.read(t["loss"], line=9)
        t["g"] = s.op("aten.mm.default", [t["a"], t["x"]], (8, 8), at="loss.backward()", line=7, phase="backward", forward=s.seq - 5)
        at("after backward")
        t["w"] = s.op("aten.add_.Tensor", [t["w"], t["g"]], (8, 8), into=t["w"], at="opt.step()", line=8, phase="optimizer")
        at("after update")
        w = t["w"]
        s.state(param__w=w)
        s.update()
        at("tail")
        ema = t["ema"] = s.op("aten.lerp_.Scalar", [t["ema"], w], (8, 8), into=t["ema"], at="ema.lerp_(w, 0.1)", line=10, phase="data")
        at("end")


def traced(twist: Twist | None = None, *, steps: int = 2, ended: str = "exit", rank: int = 0, **options: Any) -> MemoryTrace:
    """One rank, with what a writer would not do on purpose: ``torn``, ``dropped``; the rest closes the script."""
    script = Script(rank=rank)
    train(script, steps=steps, twist=twist)
    broken = {name: options.pop(name) for name in ("torn", "dropped") if name in options}
    script.close(ended=ended, **options)
    return MemoryTrace(script.writer, script.writer.manifest, **broken)


def slugs(verdict: Verdict) -> list[str]:
    """The reasons of a verdict, in short."""
    return [reason.slug for reason in verdict.reasons]


@pytest.fixture
def judge() -> Judge:
    """Verdict over two twisted trainings."""

    def run(reference: Twist | None = None, suspect: Twist | None = None, *, steps: tuple[int, int] = (2, 2), **options: Any) -> Verdict:
        runs = []
        for side, twist, count in (("reference", reference, steps[0]), ("suspect", suspect, steps[1])):
            script = Script()
            train(script, steps=count, twist=twist)
            runs.append(script.close(**options.get(side, {})))
        return compare(*runs, **options.get("compare", {}))

    return run


@pytest.fixture
def both(judge: Judge) -> Judge:
    """As `judge`; the mirrored comparison must give the mirrored answer."""

    def run(reference: Twist | None, suspect: Twist | None, **options: Any) -> Verdict:
        verdict, mirror = judge(reference, suspect, **options), judge(suspect, reference, **options)
        assert mirror.verdict == verdict.verdict
        assert [reason.slug for reason in mirror.reasons] == [reason.slug for reason in verdict.reasons]
        assert (mirror.pivot is None) == (verdict.pivot is None)
        if verdict.pivot is not None and mirror.pivot is not None:
            assert mirror.pivot.origin == verdict.pivot.origin
            assert mirror.pivot.origin_alternatives == verdict.pivot.origin_alternatives
            assert (mirror.pivot.reference, mirror.pivot.suspect) == (verdict.pivot.suspect, verdict.pivot.reference)
        return verdict

    return run
