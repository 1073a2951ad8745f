"""A small made-up training: set-up, then steps of two layers, a loss, their backward and an update."""

import dataclasses

import pytest

from tests.support.script import Script


@dataclasses.dataclass(frozen=True)
class Style:
    """How a programmer wrote it; the values are the same.

    ``texts``: expressions that read otherwise; ``function`` and ``file`` of the forward; ``batch``: rows of a batch;
    ``extra``: another operator in every step; ``without``: a layer's activation is left out; ``layers``: calls of the layer.
    """

    texts: dict = dataclasses.field(default_factory=dict)
    function: str = "Net.forward"
    file: str = "model.py"
    line: int = 10
    batch: int = 4
    extra: str = ""
    without: bool = False
    layers: int = 2


PLAIN = Style()
REFACTORED = Style(
    texts={"F.linear(x, w)": "F.linear(hidden, weight)", "torch.relu(x)": "torch.relu(hidden)", "loss * share": "loss*part"},
    function="block",
    file="helpers/block.py",
    line=200,
)


def training(script, style=PLAIN, *, steps=3, first_window=0, counted="counted=True", tail=False):
    """Record it on ``script``; returns the script."""
    script.window = first_window
    weight = script.given((4, 4), 1, name="param:w")
    if not first_window:
        script.op("aten.normal_.default", [weight], (4, 4), 2, into=weight, phase="data", at="init(w)", function="main", file="train.py")
    for step in range(first_window, first_window + steps):
        _step(script, style, weight, step)
        script.marker("opguard.optimizer.end", args=f"class=SGD;{counted}", at="opt.step()", phase="optimizer")
        script.window += 1
    if tail:
        script.op("aten.mean.default", [weight], (), 900, phase="eval", at="evaluate()", function="main", file="train.py")
    return script


def _step(script, style, weight, step):
    def written(text):
        return {"at": style.texts.get(text, text), "function": style.function, "file": style.file, "line": style.line}

    x = script.given((style.batch, 4), 100 + step)
    forward = []
    for layer in range(style.layers):
        place = {"module": f"layers.{layer}"}
        forward.append(script.seq)
        x = script.op("aten.linear.default", [x, weight], (style.batch, 4), **written("F.linear(x, w)"), **place)
        if not (style.without and layer == 0):
            x = script.op("aten.relu.default", [x], (style.batch, 4), **written("torch.relu(x)"), **place)
    if style.extra:
        script.op(style.extra, [x], (style.batch, 4), 500 + step, at="watch(x)", function="main", file="train.py")
    loss = script.op("aten.mul.Tensor", [x], (), at=style.texts.get("loss * share", "loss * share"), function="main", file="train.py")
    for seq in reversed(forward):
        script.op("aten.mm.default", [loss, weight], (4, 4), 700 + 10 * step + seq % 7, phase="backward", at="loss.backward()", forward=seq)
    script.op("aten.sub_.Tensor", [weight], (4, 4), 800 + step, into=weight, phase="optimizer", at="opt.step()", file="train.py")


@pytest.fixture
def run():
    """Builds a run in memory: ``run(style, **options)``."""

    def build(style=PLAIN, *, mode="verify", **options):
        return training(Script(mode=mode), style, **options).close()

    return build
