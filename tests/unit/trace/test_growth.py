"""How many updates a rank has made is read from its trace while it grows."""

import pytest

from opguard_core.trace import growth
from opguard_core.trace.growth import GrowingRank
from tests.support.script import Script


class Training:
    """A rank that makes steps, and flushes when it is told to."""

    def __init__(self, folder, *, first=0, rank=0):
        self.script = Script(folder, rank=rank, world_size=2)
        self.script.window = first
        self.folder = folder / f"rank-{rank:05d}"

    def work(self):
        self.script.op("aten.mm.default", [self.script.given((4, 4), self.script.seq)])

    def step(self, why="update"):
        self.work()
        self.script.event("opguard.state", [], kind="state", phase="state", args=f"why={why}")
        self.script.window += 1

    def flush(self):
        self.script.writer.flush()


@pytest.fixture
def training(tmp_path):
    made = []

    def build(**facts):
        made.append(Training(tmp_path, **facts))
        return made[-1]

    yield build
    for one in made:
        one.script.writer.close(ended="exit")


def test_steps_are_counted_as_they_become_durable(training):
    run = training()
    rank = GrowingRank(run.folder)
    assert rank.look() == 0
    run.step()
    assert rank.look() == 0  # nothing was committed yet
    run.flush()
    assert rank.look() == 1
    run.step()
    run.step()
    run.work()  # of the next step, which has not ended
    run.flush()
    assert rank.look() == rank.done == 3


def test_a_run_that_ended_is_counted_in_one_look(training):
    run = training()
    for _ in range(4):
        run.step()
        run.flush()
    run.script.event("opguard.state", [], kind="state", phase="state", args="why=end")
    run.flush()
    assert GrowingRank(run.folder).look() == 4


def test_skipped_updates_count_and_the_state_at_the_end_does_not(training):
    run = training()
    run.step("skipped")
    run.step()
    run.script.event("opguard.state", [], kind="state", phase="state", args="why=end")
    run.flush()
    assert GrowingRank(run.folder).look() == 2


def test_a_resumed_run_counts_its_own_steps(training):
    run = training()
    run.work()
    run.flush()
    run.script.window = 100  # what an optimizer's own state said
    run.step()
    run.step()
    run.flush()
    assert GrowingRank(run.folder).look() == 2


def test_in_a_window_only_its_steps_count(training):
    run = training()
    run.work()
    run.script.window = 9
    run.step()  # the state before the first step of the window
    run.flush()
    rank = GrowingRank(run.folder, (10, 12))
    assert rank.look() == 0
    run.step()
    run.flush()
    assert rank.look() == 1
    run.step()
    run.script.window = 40
    run.script.marker("opguard.run.end")
    run.flush()
    assert rank.look() == 2


def test_only_the_newest_segment_is_read_again(training, monkeypatch):
    run = training()
    read = []
    real = growth.read_segment
    monkeypatch.setattr(growth, "read_segment", lambda folder, entry: read.append(entry.file) or real(folder, entry))
    rank = GrowingRank(run.folder)
    run.step()
    run.flush()
    rank.look()
    rank.look()
    assert len(read) == 1
    for _ in range(5):
        run.step()
        run.flush()
    assert rank.look() == 6
    assert len(read) == 2


@pytest.mark.parametrize("damage", ["cut", "garbage", "segment", "link"])
def test_what_cannot_be_read_tells_nothing_and_raises_nothing(training, damage, tmp_path):
    run = training()
    run.step()
    run.flush()
    rank = GrowingRank(run.folder)
    assert rank.look() == 1
    run.step()
    run.flush()
    index = run.folder / "index.log"
    if damage == "cut":
        index.write_bytes(index.read_bytes()[:-20])
    elif damage == "garbage":
        with index.open("ab") as stream:
            stream.write(b"x" * 32 + b' {"segments": [{"file": "../../etc/passwd", "table": "events"}]}\n')
    elif damage == "segment":
        sorted(run.folder.glob("events-*.arrow"))[-1].write_bytes(b"ARROW1")
    else:
        index.rename(tmp_path / "elsewhere")
        index.symlink_to(tmp_path / "elsewhere")
    assert rank.look() == 1


def test_a_rank_that_is_not_there_yet_has_made_none(tmp_path):
    assert GrowingRank(tmp_path / "rank-00000").look() == 0
