"""Golden investigations: the same calls over pipes in the older era, in memory in the newest, and through a shell answer the same.

``OPGUARD_UPDATE_SNAPSHOTS=1 pytest tests/mcp/test_golden.py`` writes the stored results anew, from the calls that stand there.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.driving.golden import read, replay, write
from tests.support.driving.transports import InMemory, Shell, ShellHere, Stdio
from tests.support.driving.world import BROKEN, PROGRAM, store_comparison, store_run
from tests.support.raw_server import REPOSITORY

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.jsonl"))
NEVER = ("Traceback", str(REPOSITORY), "pydantic", "site-packages")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A state folder with three runs and a comparison, made once; its traces carry the time at which they were made."""
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        for name, side in (("stored-right", PROGRAM), ("stored-wrong", BROKEN), ("stored-equal", PROGRAM)):
            store_run(name, side)
        store_comparison("stored-identical", "stored-right", "stored-equal")
    (folder / "state").rename(folder / "pristine")
    return folder


@pytest.fixture
def replayed(pristine, tmp_path, state, monkeypatch):
    """Replays a file over one transport, on a state folder as it was in the beginning and where it was made."""
    root, home = tmp_path / "root", pristine / "state"
    root.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(home))

    def once(kind, path):
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(pristine / "pristine", home)
        with kind(root) as transport:
            return replay(transport, read(path), {"root": root, "state": home / "opguard", "tmp": tmp_path})

    return once


def named(path):
    return path.stem


@pytest.mark.parametrize("path", GOLDEN, ids=named)
def test_every_transport_answers_as_it_is_written(replayed, path):
    first = replayed(InMemory, path)
    if os.environ.get("OPGUARD_UPDATE_SNAPSHOTS"):
        write(path, first)
    golden = read(path)
    assert first == golden
    assert replayed(Stdio, path) == golden
    assert replayed(ShellHere, path) == golden


@pytest.mark.full
@pytest.mark.parametrize("path", GOLDEN, ids=named)
def test_a_process_for_each_call_answers_as_it_is_written(replayed, path):
    assert replayed(Shell, path) == read(path)


@pytest.mark.parametrize("path", GOLDEN, ids=named)
def test_what_is_written_is_no_traceback_and_no_path_of_ours(path):
    lines = read(path)
    text = path.read_text("ascii")
    assert not [word for word in NEVER if word in text]
    assert [line["name"] for line in lines if line["failed"] and not line["result"]["error"]["fix"]] == []


def test_the_mistakes_are_mistakes_and_the_rest_is_none():
    failed = {path.stem: [line["failed"] for line in read(path)] for path in GOLDEN}
    assert all(failed["mistakes"])
    assert not any(flag for stem, flags in failed.items() if stem != "mistakes" for flag in flags)
