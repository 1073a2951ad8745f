"""Files that ask a run to keep or to transplant: read as written, refused with a reason otherwise."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from opguard_core.errors import ConfigError
from opguard_core.launch.command import parse
from opguard_core.plan.command import launch_argv
from opguard_core.plan.keeping import Keep, Transplant, load_keep, load_transplants, save_transplants, slots_to_put
from opguard_core.trace.boundary import BoundaryKey

KEY = BoundaryKey(0, 3, "forward", "aten.mm.default", "blocks.1", "forward", "x @ w", 2)
OTHER = BoundaryKey(1, 3, "backward", "aten.mm.default", "", "", "")


def test_a_request_to_keep_is_read_as_written_and_private(tmp_path):
    path = tmp_path / "keep.json"
    Keep((KEY, OTHER), 123).save(path)
    assert load_keep(path) == Keep((KEY, OTHER), 123)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_transplants_are_read_as_written_and_their_files_found_from_their_folder(tmp_path):
    path = tmp_path / "transplant.json"
    save_transplants(path, [Transplant(KEY, Path("../kept-0.safetensors"), {"out.0": "out.1"}), Transplant(OTHER, Path("/k"))])
    first, second = load_transplants(path)
    assert (first.boundary, dict(first.slots), first.kept) == (KEY, {"out.0": "out.1"}, tmp_path / "../kept-0.safetensors")
    assert (second.boundary, dict(second.slots), second.kept) == (OTHER, {}, Path("/k"))


def test_one_transplant_may_stand_alone(tmp_path):
    path = tmp_path / "transplant.json"
    path.write_text(json.dumps({"format": 1, "boundary": KEY.as_dict(), "kept": "/k", "slots": {}}))
    assert load_transplants(path) == (Transplant(KEY, Path("/k")),)


PLAIN = KEY.as_dict()
ONE = {"boundary": PLAIN, "kept": "/k"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "Expecting"),
        ("[]", "no JSON object"),
        ({"format": 1}, "keys boundaries"),
        ({"format": 2, "boundaries": [PLAIN]}, "format 2"),
        ({"format": 1, "boundaries": []}, "list of 1"),
        ({"format": 1, "boundaries": [PLAIN] * 2}, "twice"),
        ({"format": 1, "boundaries": [PLAIN], "limit_bytes": -1}, "limit_bytes"),
        ({"format": 1, "boundaries": [PLAIN], "limit_bytes": True}, "limit_bytes"),
        ({"format": 1, "boundaries": [PLAIN], "limit_bytes": 1 << 60}, "limit_bytes"),
        ({"format": 1, "boundaries": [{**PLAIN, "occurrence": i} for i in range(300)]}, "list of 1"),
        ({"format": 1, "boundaries": [PLAIN], "run": "x"}, "keys boundaries"),
        ("[" * 100_000, "cannot be carried out"),
    ],
)
def test_another_request_to_keep_is_refused(tmp_path, content, says):
    path = tmp_path / "keep.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match=says) as caught:
        load_keep(path)
    assert caught.value.as_dict()["slug"] == "keep-invalid"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"format": 1}, "keys boundary"),
        ({"format": 1, "transplants": []}, "list of 1"),
        ({"format": 1, "transplants": [ONE, ONE]}, "twice"),
        ({"format": 1, "transplants": [{**ONE, "kept": ""}]}, "path"),
        ({"format": 1, "transplants": [{**ONE, "kept": "a\0b"}]}, "path"),
        ({"format": 1, "transplants": [{**ONE, "slots": {"param:w": "out.0"}}]}, "no slot of an operator"),
        ({"format": 1, "transplants": [{**ONE, "slots": {"out.0": 1}}]}, "no slot of the kept file"),
        ({"format": 1, "transplants": [{**ONE, "slots": []}]}, "slots is an object"),
    ],
)
def test_another_request_to_transplant_is_refused(tmp_path, content, says):
    path = tmp_path / "transplant.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=says) as caught:
        load_transplants(path)
    assert caught.value.as_dict()["slug"] == "transplant-invalid"


def test_results_are_put_in_place_unless_slots_are_named():
    kept = ["in.0", "out.0", "mut.1", "rng"]
    assert slots_to_put(Transplant(KEY, Path("/k")), kept) == {"out.0": "out.0", "mut.1": "mut.1"}
    assert slots_to_put(Transplant(KEY, Path("/k"), {"in.0": "in.0"}), kept) == {"in.0": "in.0"}
    with pytest.raises(ConfigError, match=r"no bytes of out\.5"):
        slots_to_put(Transplant(KEY, Path("/k"), {"out.0": "out.5"}), kept)
    with pytest.raises(ConfigError, match="no result"):
        slots_to_put(Transplant(KEY, Path("/k")), ["in.0"])


def test_the_command_line_passes_both_on_and_refuses_them_without_operators():
    words = launch_argv("python", "/out", ["python", "train.py"], keep="/keep.json", transplant="/transplant.json")
    options = parse(words[2:])
    assert (options.keep, options.transplant) == (Path("/keep.json"), Path("/transplant.json"))
    with pytest.raises(ConfigError, match="sentinel"):
        parse(launch_argv("python", "/out", ["python"], mode="sentinel", keep="/keep.json")[2:])
