"""A real Hugging Face training loop: a changed line in a library file, and one in the collator, each found at its expression."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "hf_llama"


def compare(tmp_path, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable,
        "-m",
        "opguard_harness",
        "compare",
        "--mode",
        "verify",
        "--python",
        sys.executable,
        "--json",
        "--out",
        str(tmp_path / "out"),
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    return json.loads(done.stdout)


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: the planted line must occur once, found {text.count(old)}"
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def transformers_folder():
    found = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('transformers').submodule_search_locations[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(found.stdout.strip())


def test_a_changed_line_inside_a_library_file_is_found_there(tmp_path, transformers_folder):
    site = tmp_path / "site"
    copied = site / "transformers"
    changed = Path("models/llama/modeling_llama.py")
    shutil.copytree(transformers_folder, copied, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / changed).unlink()
    shutil.copyfile(transformers_folder / changed, copied / changed)
    edit(
        copied / changed,
        "variance = hidden_states.pow(2).mean(-1, keepdim=True)",
        "variance = hidden_states.abs().pow(2).sum(-1, keepdim=True) / (hidden_states.shape[-1] - 1)",
    )
    shutil.copytree(PROGRAM, tmp_path / "program")

    answer = compare(
        tmp_path, "--reference", str(tmp_path / "program"), "--suspect", str(tmp_path / "program"), "--suspect-env", f"PYTHONPATH={site}"
    )

    assert answer["verdict"] == "diverged", answer["reasons"]
    place = answer["pivot"]["suspect"]
    assert place["file"] == f"transformers/{changed}"
    assert "hidden_states.shape[-1] - 1" in place["statement"]
    assert (answer["pivot"]["step"], answer["pivot"]["phase"]) == (0, "forward")


def test_a_changed_line_in_the_collator_is_found_there(tmp_path):
    for side in ("reference", "suspect"):
        shutil.copytree(PROGRAM, tmp_path / side)
    # Labels are shifted once here and again inside the model: the classic double shift.
    edit(
        tmp_path / "suspect" / "collator.py",
        "labels[index, :length] = ids[index, :length]",
        "labels[index, : length - 1] = ids[index, 1:length]",
    )

    answer = compare(tmp_path, "--reference", str(tmp_path / "reference"), "--suspect", str(tmp_path / "suspect"))

    assert answer["verdict"] == "diverged", answer["reasons"]
    place = answer["pivot"]["suspect"]
    assert place["file"] == "collator.py"
    assert "labels[index, : length - 1]" in place["statement"]
    assert answer["pivot"]["step"] == 0


def test_the_same_training_twice_is_identical(tmp_path):
    shutil.copytree(PROGRAM, tmp_path / "program")

    answer = compare(tmp_path, "--reference", str(tmp_path / "program"), "--suspect", str(tmp_path / "program"))

    assert answer["verdict"] == "identical", answer["reasons"]
    assert answer["compared"]["ranks"] == [0]
    assert answer["prefix"]["pairs"] > 1000
