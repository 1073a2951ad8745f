"""A timeline, read back with the classes of the package that wrote it: what is there, and that it is what the traces hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from opguard_core.errors import ConfigError, DependencyMissing
from opguard_core.trace.reader import Run
from opguard_harness.cli.app import dispatch
from opguard_harness.report.progress import Silent
from opguard_harness.tools.align import AlignArguments, align
from opguard_harness.workspace.stored import answer_of
from opguard_harness.workspace.timeline.drawing import Drawn, timeline, write_timeline
from tests.support.hostile import CANARY, hostile_runs
from tests.support.perfetto_view import View, view
from tests.support.stored_case import StoredCase
from tests.support.synthetic import Corrupt, Delete, GptShape, Side, gpt, write_run


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def aligned(folder: Path) -> dict[str, Any]:
    found = align(AlignArguments(str(folder / "reference"), str(folder / "suspect")), Silent())
    return answer_of(found.comparison)


def drawn(answer: dict[str, Any], *arguments: Any, **options: Any) -> tuple[View, Drawn]:
    data, told = timeline(answer, *arguments, **options)
    return view(data), told


def test_lanes_flows_and_pivot_of_a_comparison(case: StoredCase) -> None:
    pivot = case.answer["pivot"]
    seen, told = drawn(case.answer)
    lanes = ["rank 0 reference", "rank 0 suspect"]
    assert seen.tracks == [track for lane in lanes for track in (lane, f"{lane}/steps and phases", f"{lane}/main")]
    assert told.steps == (pivot["step"] - 1, pivot["step"] + 2)
    steps = [item.name for item in seen.on("rank 0 suspect/steps and phases") if item.categories == ["step"]]
    assert steps == [f"step {number}" for number in range(*told.steps)]
    assert {item.depth for item in seen.on("rank 0 suspect/steps and phases") if item.categories == ["phase"]} >= {1}

    own = {lane: seen.on(f"{lane}/main") for lane in lanes}
    flows = [{item.flows[0]: item for item in own[lane] if item.flows} for lane in lanes]
    assert flows[0].keys() == flows[1].keys() and len(flows[0]) == told.pairs > 100
    assert all(flows[0][number].name == flows[1][number].name for number in flows[0]), "nothing was renamed between these runs"
    assert sum(map(len, own.values())) == told.boundaries == told.total
    differing = [number for number in flows[0] if "differs" in flows[1][number].categories]
    assert len(differing) == told.differing > 0
    for number in flows[0]:
        a, b = (flows[side][number].arguments["slots"] for side in (0, 1))
        written = {name for name in a if name.startswith(("out", "mut"))}
        digests_differ = any(a[name] != b[name] for name in written or a)
        assert digests_differ == (number in differing), "a pair is coloured by what its two records say"

    marks = [mark for mark in seen.instants if "pivot" in mark.categories]
    assert [mark.track for mark in marks] == [f"{lane}/main" for lane in lanes] and told.pivot
    assert all(mark.name == f"PIVOT {pivot['operator']} {pivot['slot']} ({pivot['origin']})" for mark in marks)
    for side, lane in zip(("reference", "suspect"), lanes, strict=True):
        (at,) = [item for item in own[lane] if "pivot" in item.categories]
        assert at.arguments["event"] == pivot["seq"][side] and at.colour == "pivot"
        assert at.arguments["evidence"] == case.cited(side)
        assert at.arguments["place"].startswith(f"{pivot[side]['file']}:{pivot[side]['line']} ")
        assert [mark.begin for mark in marks if mark.track.startswith(lane)] == [at.begin]


@pytest.mark.full
@pytest.mark.usefixtures("own_state")
def test_every_rank_and_every_thread_has_a_track_of_its_own(tmp_path: Path) -> None:
    program = gpt(GptShape(layers=1, steps=2, world_size=2, loader_thread=True))
    at = program.find(1, operator="aten.gelu.default")[0]
    write_run(tmp_path / "reference", program, program)
    write_run(tmp_path / "suspect", program, Side(program, [Corrupt(at)]))
    seen, told = drawn(aligned(tmp_path))
    assert told.ranks == [(0, 0), (1, 1)]
    threads = {slot.thread for slot in _events(tmp_path / "reference")}
    assert len(threads) > 1
    for rank in (0, 1):
        for side in ("reference", "suspect"):
            tracks = [track for track in seen.tracks if track.startswith(f"rank {rank} {side}/")]
            assert len(tracks) == 1 + len(threads)
    assert {"collective"} & {item.name for item in seen.slices if item.categories == ["phase"]}


@pytest.mark.full
def test_events_of_a_stream_are_on_its_track(case: StoredCase, monkeypatch: pytest.MonkeyPatch) -> None:
    from opguard_core.trace.window import WindowTable

    plain = WindowTable.event
    monkeypatch.setattr(WindowTable, "event", lambda self, index: replace_stream(plain(self, index)))
    seen, _ = drawn(case.answer)
    assert {"rank 0 suspect/main, stream 7", "rank 0 suspect/main, stream 9"} <= set(seen.tracks)


def replace_stream(event: Any) -> Any:
    return event._replace(stream=7 + 2 * (event.seq % 2))


@pytest.mark.usefixtures("own_state")
def test_what_one_side_alone_did_has_no_flow_and_says_so(tmp_path: Path) -> None:
    program = gpt(GptShape(layers=1, steps=2, dropout=False))
    at = program.find(1, operator="aten.gelu.default")[0]
    write_run(tmp_path / "reference", program)
    write_run(tmp_path / "suspect", Side(program, [Delete(at)]))
    seen, told = drawn(aligned(tmp_path))
    alone = [item for item in seen.slices if "only here" in item.categories]
    assert [item.arguments["event"] for item in alone if item.track.startswith("rank 0 reference")] == [at]
    assert not any(item.flows for item in alone)
    assert told.boundaries == 2 * told.pairs + len(alone)


def test_other_steps_are_shown_when_asked_for_and_the_pivot_is_not_made_up(case: StoredCase) -> None:
    seen, told = drawn(case.answer, (3, 4))
    assert told.steps == (3, 4) and not told.pivot and not [mark for mark in seen.instants if "pivot" in mark.categories]
    assert {item.arguments["step"] for item in seen.slices if "step" in item.arguments} == {3}
    assert drawn(case.answer, (4, 10_000_000))[1].steps == (4, 5)
    with pytest.raises(ConfigError, match="Neither side recorded a boundary"):
        timeline(case.answer, (100, 102))


def test_a_long_step_is_cut_around_the_pivot_and_says_so(case: StoredCase) -> None:
    seen, told = drawn(case.answer, most=40)
    assert told.boundaries == 40 < told.total and told.pivot
    cut = [mark.name for mark in seen.instants if mark.categories == ["truncated"]]
    assert cut == [f"20 of {told.total // 2} boundaries of these steps are shown"] * 2


@pytest.mark.full
def test_the_bytes_are_the_same_each_time_and_the_file_is_private(case: StoredCase, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_timeline(case.comparison, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
@pytest.mark.usefixtures("own_state")
def test_hostile_names_and_clocks_make_a_file_that_reads_as_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opguard_core.trace.window import WindowTable

    plain = WindowTable.event

    def wild(self: WindowTable, index: int) -> Any:
        event = plain(self, index)
        clocks = (-(1 << 62), 0, (1 << 63) - 1, 5)
        return event._replace(t_host_ns=clocks[event.seq % 4], module=f"\ud800{event.module}", args=event.args * 50)

    monkeypatch.setattr(WindowTable, "event", wild)
    hostile_runs(tmp_path)
    seen, told = drawn(aligned(tmp_path))
    assert told.pairs
    texts = [*seen.tracks, *(text for item in [*seen.slices, *seen.instants] for text in _texts([item.name, item.arguments]))]
    assert any(CANARY in text for text in texts)
    assert all(text.isprintable() and len(text) < 600 for text in texts)
    assert not any("hunter2" in text for text in texts)


def test_without_the_package_the_error_names_the_line_that_installs_it(
    case: StoredCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "perfetto" or name.startswith("perfetto.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(DependencyMissing) as refused:
        write_timeline(case.comparison, tmp_path / "out")
    assert "pip install 'opguard-mcp[timeline]'" in refused.value.as_dict()["fix"]
    assert not (tmp_path / "out").exists()


def test_the_command_writes_and_tells(case: StoredCase, tmp_path: Path) -> None:
    said = dispatch(["timeline", case.comparison, "--out", str(tmp_path / "x.pftrace"), "--steps", "1:2"]).text
    assert "the pivot is marked `PIVOT`" in said and "steps 1 to 1" in said
    seen = view((tmp_path / "x.pftrace").read_bytes())
    assert len([mark for mark in seen.instants if "pivot" in mark.categories]) == 2


def _events(trace: Path) -> list[Any]:
    return [table.event(at) for table in Run.open(trace).ranks[0].iter_windows() for at in range(len(table))]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *_texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []
