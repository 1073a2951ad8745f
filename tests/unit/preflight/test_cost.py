"""Counts and estimates of cost, on traces whose contents are known."""

import dataclasses
import hashlib

import pytest

from opguard_core.ids import MODES
from opguard_core.preflight.estimate import (
    BYTE_S,
    COPY_SHARE,
    EVENT_S,
    LAUNCH_S,
    NATIVE_EVENT_S,
    STATE_TENSOR_S,
    TENSOR_S,
    basis,
    disk,
    mode_costs,
    weights_of,
    work_s,
)
from opguard_core.preflight.work import Load, Measured, measure
from opguard_core.trace.sources import SOURCES_NAME, encode_source, write_source
from tests.support.script import Script
from tests.unit.preflight.conftest import training

LOAD = Load(100.0, {"verify": 300.0, "full": 200.0, "trusted": 50.0}, {"verify": 9e6, "full": 6e6, "trusted": 1e6}, 10.0, 2e6)
SIDE = Measured(LOAD, 3, observed_s=0.030, bare_s=0.010, disk_step_bytes=5_000, disk_start_bytes=40_000)


def traced(tmp_path, mode="verify", **options):
    return training(Script(tmp_path / "run", mode=mode), **options).close()


def test_a_step_is_counted_without_the_set_up_and_without_the_tail(tmp_path):
    side = measure(traced(tmp_path, tail=True))
    assert side.steps == 3
    assert side.load.events == 8
    assert side.load.tensors["verify"] == 2 * 3 + 2 * 2 + 2 + 2 * 3 + 2  # linears, activations, the loss, gradients, the update
    assert side.load.tensors["verify"] > side.load.tensors["full"] > side.load.tensors["trusted"]
    assert side.load.read_bytes["verify"] == 4 * (2 * 3 * 16 + 2 * 2 * 16 + 17 + 2 * 33 + 2 * 16)


def test_time_is_that_between_updates(tmp_path):
    side = measure(traced(tmp_path))
    assert side.observed_s == pytest.approx(9 * 1000e-9)  # a microsecond an event: eight boundaries and a marker
    assert side.bare_s is None
    assert side.ratio is None


def test_bare_times_come_from_the_launcher(tmp_path):
    run = traced(tmp_path)
    times = {"observed": [[9000, 500], [11000, 700]], "bare": [[1000, 90], [3000, 110], [2000, 100]]}
    run.manifest.extra.update(step_times={"0": times, "1": {"observed": [], "bare": []}}, load=0.5, cores=2)
    side = measure(run)
    assert (side.observed_s, side.bare_s, side.clock) == (pytest.approx(10e-6), pytest.approx(2e-6), "wall")
    assert side.ratio == pytest.approx(5.0)
    run.manifest.extra["load"] = 2.5
    side = measure(run)
    assert (side.observed_s, side.bare_s, side.clock) == (pytest.approx(600e-9), pytest.approx(100e-9), "work")


def test_in_a_full_trace_what_was_carried_is_what_verify_would_read(tmp_path):
    script = Script(tmp_path / "run", mode="full")
    for _ in range(2):
        x = script.given((4, 4), 1)
        script.op("aten.exp.default", [dataclasses.replace(x, status="carried")], (4, 4))
        script.op("aten.cumsum.default", [x], (4, 4))
        script.update()
    load = measure(script.close()).load
    assert (load.tensors["verify"], load.tensors["full"], load.tensors["trusted"]) == (4, 3, 2)


def test_a_trace_three_times_as_long_grows_by_what_the_short_one_says(tmp_path):
    short, long = (training(Script(tmp_path / name, mode="full"), steps=steps).close() for name, steps in (("a", 20), ("b", 60)))
    side = measure(short)
    real = sum(path.stat().st_size for path in (tmp_path / "b").rglob("*") if path.is_file())
    promised = side.disk_start_bytes + 60 * side.disk_step_bytes
    assert 0.5 < promised / real < 2
    assert len(long.ranks) == 1


def test_the_texts_of_the_sources_are_stored_once(tmp_path):
    run = traced(tmp_path)
    without = measure(run).disk_start_bytes
    text = "x = 1\n"
    write_source(run.path / SOURCES_NAME, hashlib.sha256(encode_source(text)).hexdigest(), text)
    (stored,) = (run.path / SOURCES_NAME).iterdir()
    assert measure(run).disk_start_bytes == without + stored.stat().st_size


def test_a_program_without_an_update_has_no_step(tmp_path):
    side = measure(traced(tmp_path, counted="counted=False"))
    assert (side.steps, side.observed_s, side.load.events, side.load.read_bytes["verify"]) == (0, None, 0.0, 0.0)


def test_the_measured_mode_costs_what_was_measured_and_the_others_in_proportion():
    costs = mode_costs(SIDE, "full", MODES)
    assert costs["full"].measured
    assert costs["full"].ratio == pytest.approx(3.0)
    for mode in ("verify", "trusted", "sentinel"):
        assert not costs[mode].measured
        assert (costs[mode].ratio - 1) / 2.0 == pytest.approx(work_s(LOAD, mode) / work_s(LOAD, "full"))
    assert costs["verify"].ratio > costs["full"].ratio > costs["trusted"].ratio > costs["sentinel"].ratio > 1


def test_the_work_of_a_mode_is_its_boundaries_tensors_and_bytes():
    assert work_s(LOAD, "full") == pytest.approx(100 * EVENT_S + 200 * TENSOR_S + 10 * STATE_TENSOR_S + 8e6 * BYTE_S)
    assert work_s(LOAD, "sentinel") == pytest.approx(10 * STATE_TENSOR_S + 2e6 * BYTE_S)


CARD = dataclasses.replace(SIDE, observer="native", device="NVIDIA H200", memory_bytes_per_s=4.9e12, device_bytes=40 << 20)


def test_on_a_card_bytes_cost_what_its_memory_can_copy_and_boundaries_what_their_engine_costs():
    weights = weights_of(CARD)
    assert weights.byte_s == pytest.approx(1 / (COPY_SHARE * 4.9e12))
    assert weights.event_s == pytest.approx(NATIVE_EVENT_S + LAUNCH_S)
    assert weights_of(dataclasses.replace(CARD, observer="dispatch")).event_s == pytest.approx(EVENT_S + LAUNCH_S)
    assert weights_of(dataclasses.replace(SIDE, observer="native")).byte_s == BYTE_S


def test_bytes_weigh_more_against_boundaries_where_these_are_cheap():
    heavy = dataclasses.replace(LOAD, read_bytes={"verify": 42e9, "full": 16e9, "trusted": 8e9}, events=900.0)
    native, dispatch = (dataclasses.replace(CARD, load=heavy, observer=observer) for observer in ("native", "dispatch"))
    spread = [work_s(heavy, "verify", weights_of(side)) / work_s(heavy, "trusted", weights_of(side)) for side in (native, dispatch)]
    assert spread[0] > spread[1] > 1
    costs = mode_costs(native, "full", MODES)
    assert costs["verify"].ratio > costs["full"].ratio > costs["trusted"].ratio > costs["sentinel"].ratio > 1


def test_the_basis_says_who_observed_on_what_and_whether_anything_was_timed():
    assert basis(CARD) == "engine native, digests on NVIDIA H200 at 4.3 TB/s (its copy rate); scaled to the measured mode"
    assert basis(dataclasses.replace(SIDE, bare_s=None)) == "engine dispatch, digests on the processor; not scaled: nothing was timed"
    assert "at 1.0 TB/s (its copy rate, assumed)" in basis(dataclasses.replace(CARD, memory_bytes_per_s=None))


def test_who_observed_and_what_a_card_gave_for_it_come_from_the_manifest(tmp_path):
    run = traced(tmp_path)
    manifest = run.ranks[0].manifest
    manifest.contract.update({"device.name": "NVIDIA H200", "device.memory_bytes_per_s": 4_900_000_000_000})
    manifest.engines = {"native": {"active": True, "fingerprint": {"cuda": {"device_bytes": 100, "pinned_bytes": 7}, "waits": 0}}}
    side = measure(run)
    assert (side.observer, side.device, side.memory_bytes_per_s, side.device_bytes, side.pinned_bytes) == (
        "native",
        "NVIDIA H200",
        4.9e12,
        100,
        7,
    )
    manifest.contract.update({"device.name": {"unknown": "x"}, "device.memory_bytes_per_s": {"unknown": "x"}})
    manifest.engines = {"native": {"active": False}, "dispatch": {"active": True}, "odd": 3}
    side = measure(run)
    assert (side.observer, side.device, side.memory_bytes_per_s, side.device_bytes) == ("dispatch", "", None, 0)


def test_without_a_bare_time_no_ratio_is_made_up():
    costs = mode_costs(dataclasses.replace(SIDE, bare_s=None), "full", MODES)
    assert {cost.ratio for cost in costs.values()} == {None}
    assert costs["verify"].added_s == pytest.approx(work_s(LOAD, "verify"))


def test_observation_that_seems_to_make_a_step_faster_costs_nothing():
    costs = mode_costs(dataclasses.replace(SIDE, observed_s=0.009), "full", MODES)
    assert costs["verify"].added_s == 0.0
    assert costs["verify"].ratio == pytest.approx(1.0)


def test_the_disk_holds_both_sides_for_all_planned_steps_or_not():
    both = {"reference": SIDE, "suspect": dataclasses.replace(SIDE, disk_step_bytes=15_000)}
    assert disk(both, 10, 280_000).fits is True
    assert disk(both, 10, 279_999).fits is False
    assert disk(both, 10, 0).needed_bytes == 2 * 40_000 + 10 * 20_000
    unknown = disk(both, None, 1_080_000)
    assert (unknown.fits, unknown.needed_bytes, unknown.steps_that_fit) == (None, None, 50)
    assert disk(both, None, 1_000).steps_that_fit == 0
