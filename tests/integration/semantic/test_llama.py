# ruff: noqa: E402  (torch may be missing)
"""A small Llama written by hand, against itself and against that of Hugging Face: equal at every named boundary, or to the one planted.

Both code bases have other modules, names, operators and call trees; what they compute is the same to the last bit, forward and backward.
"""

import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

from opguard_core.capture.session import start
from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.marks import ANNOUNCED
from opguard_core.plan.config import RunConfig
from opguard_core.trace.reader import Run

FOLDER = Path(__file__).resolve().parents[2] / "programs" / "llama"
ORDERS = (
    "model.layers.*.self_attn=layers.*.attention",
    "blocks.*.attention=layers.*.attention",
    "model.layers.*.mlp=layers.*.mlp",
    "blocks.*.feed=layers.*.mlp",
    "model.layers.*.input_layernorm=layers.*.norm1",
    "blocks.*.before_attention=layers.*.norm1",
    "model.layers.*.post_attention_layernorm=layers.*.norm2",
    "blocks.*.before_feed=layers.*.norm2",
    "model.layers.*=layers.*",
    "blocks.*=layers.*",
    "model.norm=norm",
    "final=norm",
    "lm_head=logits",
    "transformers.models.llama.modeling_llama:apply_rotary_pos_emb=rope",
)
NAMES = 13
PLANTS = {  # the boundary, what of it, how
    "rope": ("rope", "exit", "inside"),
    "norm": ("layers.1.norm2", "exit", "inside"),
    "norm-backward": ("layers.1.norm2", "gradient of entry", "inside-backward"),
}


@pytest.fixture
def llama(monkeypatch):
    """Imports the programs as modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv(ANNOUNCED, "decorated functions are to be seen")
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in ("setting", "train_hand", "train_hf"):
        sys.modules.pop(name, None)


def recorded(folder, run, mode="full"):
    folder.mkdir()
    session = start(RunConfig(run_dir=folder, user_root=FOLDER, mode=mode, semantic=ORDERS))
    try:
        run()
    finally:
        session.stop("exit")
    return Run.open(folder)


def by_hand(llama, folder, plant="", *, updates=False):
    """One forward and backward, or a whole training."""
    hand, setting = llama("train_hand"), llama("setting")
    hand.PLANT = plant

    def run():
        model = hand.Llama()
        if updates:
            setting.train(model, model.parameters(), hand.loss_of)
        else:
            hand.loss_of(model, next(setting.batches(0))).backward()

    return recorded(folder, run)


def check_plants(llama, reference, folder, **how):
    for plant, (name, at, kind) in PLANTS.items():
        told = to_dict(compare(reference, by_hand(llama, folder / plant, plant, **how)))["semantic"]
        first = told["first"]
        assert (told["outcome"], first["name"], first["at"], first["kind"]) == ("differs", name, at, kind), plant
        assert (first["step"], first["microbatch"], first["entry"]) == (0, 0, "equal"), plant
        assert first["parameters"] == ("none" if name == "rope" else "equal"), plant
        assert told["prefix"]["records"] >= 16, plant
        if at != "exit":
            assert first["read_elsewhere"] is True  # the residual connection
            assert first["gradient"] == "equal"


def test_a_planted_difference_is_found_at_its_boundary_forward_and_backward(llama, tmp_path):
    reference = by_hand(llama, tmp_path / "reference")
    check_plants(llama, reference, tmp_path)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the library
def test_hugging_face_and_by_hand_are_equal_at_every_boundary_and_to_the_planted_one(llama, tmp_path):
    pytest.importorskip("transformers")
    llama("transformers.models.llama.modeling_llama")
    reference = recorded(tmp_path / "hf", llama("train_hf").main)
    answer = to_dict(compare(reference, by_hand(llama, tmp_path / "hand", updates=True)))
    told = answer["semantic"]
    assert answer["verdict"] != "diverged"
    assert (told["outcome"], told["names_total"], told["first"], told["later"]) == ("equal", NAMES, None, [])
    assert told["records"] == {"equal": told["prefix"]["records"]}
    assert told["prefix"]["records"] == 2 * 2 * 58  # steps, microbatches
    assert told["only"] == {"reference": [], "suspect": []}
    assert not (told["uneven"] or told["ambiguous"] or told["reordered"])
    check_plants(llama, reference, tmp_path, updates=True)
