"""Files of the state folder that are links are as good as none, and pipes in their place hold nobody up."""

import os
import threading

import pytest

from opguard_harness.compare import programs
from opguard_harness.errors import NotReplayable
from opguard_harness.workspace import evidence, listing

READERS = {
    "answer.json": (lambda path: list(evidence._named(path)), []),
    "listed.json": (listing.json_object, {}),
}


@pytest.fixture(params=["link", "pipe"])
def special(request, tmp_path):
    """Puts a link to a document, or a pipe that nobody writes to, where a document should be."""

    def put(name):
        path = tmp_path / name
        if request.param == "pipe":
            os.mkfifo(path)
        else:
            (tmp_path / "elsewhere").write_text('{"trace": {"reference": "/a", "suspect": "/b"}}')
            path.symlink_to(tmp_path / "elsewhere")
        return path

    return put


def answered(read, path):
    """What a reader answers; one that waits for a pipe is let go, and has not answered."""
    found = []
    reader = threading.Thread(target=lambda: found.append(read(path)))
    reader.start()
    reader.join(10.0)
    if reader.is_alive():
        os.close(os.open(path, os.O_WRONLY))
        reader.join()
        pytest.fail(f"reading {path.name} waited for a pipe")
    return found[0]


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_plain_file_is_not_read(special, name):
    read, nothing = READERS[name]
    assert answered(read, special(name)) == nothing


def test_programs_that_are_no_plain_file_cannot_be_replayed(special):
    def read(path):
        try:
            programs.read_programs(path.parent)
        except NotReplayable as error:
            return error.slug
        return ""

    assert answered(read, special(programs.FILE)) == "not-replayable"
