"""What a run controls is data of a repro, never code; what cannot be rebuilt is refused with its reason; stored ones are found."""

from __future__ import annotations

import ast
import json

import pytest

from opguard_core.errors import EvidenceInvalid, EvidenceNotFound, EvidenceStale, ReproRefused
from opguard_core.evidence.repro import DATA, SCRIPT, Captured, write_repro
from opguard_core.evidence.repro.bundle import TEMPLATE
from opguard_harness.config import private_dir, runs_dir
from opguard_harness.errors import OutRefused
from opguard_harness.workspace.repro import find_repro, hand_out
from tests.support.blocks import normal
from tests.support.kept import kept

X = normal(4, 6)
EVENT = "ev:0123456789ab/0/7"
HOSTILE = "'); import os; os.system('touch owned') #\n\"\"\"{__import__('os')}"


def written(folder, reference, suspect, contract=None):
    sides = tuple(None if one is None else Captured(one, EVENT, contract or {}) for one in (reference, suspect))
    write_repro(folder, sides)
    data = (folder / DATA).read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    return json.loads(table.pop("__metadata__")["opguard.repro"]), table, data[8 + length :]


def test_the_program_is_the_same_text_whatever_the_run_wrote(tmp_path):
    for number, args in enumerate(("", f"mode={HOSTILE!r}", f"mode={'x' * 150!r};other=0x1.8p+0")):
        folder = tmp_path / str(number)
        folder.mkdir()
        document, *_ = written(folder, kept(args=args, in_0=X, out_0=X), kept(args=args, in_0=X, out_0=X))
        assert (folder / SCRIPT).read_bytes() == TEMPLATE.read_bytes()
    ast.parse(TEMPLATE.read_text("ascii"))
    assert document["sides"]["suspect"]["arguments"]["other"] == {"float": "0x1.8p+0"}


def test_the_program_evaluates_nothing_and_needs_torch_alone():
    tree = ast.parse(TEMPLATE.read_text("ascii"))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"argparse", "hashlib", "json", "re", "sys", "pathlib", "torch"}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__", "open", "vars", "globals", "input"}
    assert "pickle" not in TEMPLATE.read_text("ascii")


def test_equal_tensors_are_stored_once_and_bytes_come_back(tmp_path):
    document, table, content = written(tmp_path, kept(in_0=X, in_1=X, out_0=X + 1), kept(in_0=X, in_1=X, out_0=X + 2))
    assert sorted(table) == ["reference.in.0", "reference.out.0", "suspect.out.0"]
    assert document["sides"]["suspect"]["inputs"]["in.1"]["data"] == "reference.in.0"
    begin, end = table["suspect.out.0"]["data_offsets"]
    assert content[begin:end] == (X + 2).tobytes()
    assert table["suspect.out.0"]["dtype"] == "F32"


def test_only_settings_of_the_right_type_are_handed_on(tmp_path):
    contract = {"threads.intraop": 2, "flags.mkldnn.enabled": "yes", "flags.float32_matmul_precision": HOSTILE * 9, "other": 1}
    document, *_ = written(tmp_path, kept(out_0=X), None, contract)
    assert document["environment"]["reference"] == {"threads.intraop": 2, "flags.float32_matmul_precision": (HOSTILE * 9)[:60]}


@pytest.mark.parametrize(
    ("boundary", "why"),
    [
        (kept("c10d.allreduce_.default", out_0=X), "is a collective"),
        (kept("aten.copy_.default", phase="collective", out_0=X), "belongs to a collective"),
        (kept("mylib.fused.default", out_0=X), "no operator of torch itself"),
        (kept(f"aten.{HOSTILE}.default", out_0=X), "An operator of the suspect is no operator of torch"),
        (kept("aten.__class__.mro", out_0=X, args="x=y"), "cannot be rebuilt"),
        (kept("aten._local_scalar_dense.default", in_0=X), "gave no tensor that was kept"),
        (kept(args="group=ProcessGroup(size=2)", out_0=X), "argument group"),
        (kept(args=f"x={HOSTILE}", out_0=X), "argument x"),
        (kept(stream="cpu", out_0=X), "generator whose state was not kept"),
        (kept(in_0=X, out_0=X, left_out=("in.0",)), "in.0 of the suspect was not kept: no room"),
        (kept(in_0_indices=X, out_0=X), "several parts"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_and_nothing_is_written(tmp_path, boundary, why):
    with pytest.raises(ReproRefused, match=why.replace("(", r"\(")) as caught:
        written(tmp_path, None, boundary)
    assert HOSTILE not in caught.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def confirmation(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = private_dir(runs_dir()) / "confirm-0123456789ab"

    def make(**repro):
        folder.mkdir(mode=0o700)
        written(folder, kept(in_0=X, out_0=X), None)
        listing = {"format": 1, "events": {"reference": [EVENT, "ev:ba9876543210/0/9"]}, "files": {}, "repro": repro or {"script": SCRIPT}}
        (folder / "kept.json").write_text(json.dumps(listing))
        return folder

    return make


@pytest.mark.parametrize("name", [EVENT, f"{EVENT}/out.0", "ev:ba9876543210/0/9", "confirm-0123456789ab", "job:confirm-0123456789ab/repro"])
def test_it_is_found_by_boundary_and_by_job(confirmation, name):
    folder = confirmation()
    found = find_repro(name)
    assert (found.job, found.script) == ("confirm-0123456789ab", folder / SCRIPT)


@pytest.mark.parametrize("name", ["ev:0123456789ab/0/8", "confirm-ffffffffffff", "../confirm-0123456789ab", ""])
def test_what_no_confirmation_kept_says_how_to_get_it(confirmation, name):
    confirmation()
    with pytest.raises(EvidenceNotFound) as caught:
        find_repro(name)
    assert "confirm_difference" in caught.value.as_dict()["fix"]


def test_other_references_refusals_and_lost_files_are_told(confirmation):
    folder = confirmation(refused="aten.x.default of the suspect is a collective.")
    with pytest.raises(EvidenceInvalid):
        find_repro("src:0123456789ab/a.py:1-2")
    with pytest.raises(ReproRefused, match="collective"):
        find_repro(EVENT)
    (folder / "kept.json").write_text(json.dumps({"events": {"suspect": [EVENT]}, "repro": {}}))
    (folder / DATA).unlink()
    (folder / DATA).symlink_to("/etc/hostname")
    with pytest.raises(EvidenceStale, match="is gone"):
        find_repro(EVENT)
    (folder / "kept.json").write_text("[]")
    with pytest.raises(EvidenceNotFound):
        find_repro(EVENT)


def test_copies_never_replace_a_file(confirmation, tmp_path):
    confirmation()
    found = find_repro(EVENT)
    script = hand_out(found, tmp_path / "out")
    assert script.read_bytes() == TEMPLATE.read_bytes()
    assert sorted(path.name for path in script.parent.iterdir()) == [SCRIPT, DATA]
    with pytest.raises(OutRefused, match=r"has repro\.py already"):
        hand_out(found, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutRefused, match="is no folder"):
        hand_out(found, tmp_path / "file")
