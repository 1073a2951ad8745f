# ruff: noqa: E402  (torch may be missing)
"""As `test_deferred`, for the native engine: a device that answers later changes nothing that a trace says."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.capture.session import start
from opguard_core.engines import native
from opguard_core.plan.config import RunConfig
from opguard_core.probe.promised import Promise
from tests.support.engine_programs import catalogue
from tests.support.keeping import observe
from tests.support.late import LateBackend, answering_later
from tests.support.late_native import asking_python, differences, observed
from tests.support.late_training import PROGRAMS, training, transformer
from tests.support.native import native_or_skip
from tests.support.outside.building import extension
from tests.support.outside.calling import called


@pytest.fixture(scope="module", autouse=True)
def engine():
    return native_or_skip()


@pytest.mark.parametrize("mode", ["verify", "full", "trusted"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_says_the_same_when_digests_come_late_and_in_another_order(name, mode, tmp_path):
    program, late = PROGRAMS[name], [None, LateBackend(0), LateBackend(150)]
    program()  # what torch sets up at its first use is not part of any
    at_once, *later = [observed(program, tmp_path / str(at), backend, mode) for at, backend in enumerate(late)]
    for seen, backend in zip(later, late[1:], strict=True):
        assert not differences(at_once, seen)
        assert seen.coverage == at_once.coverage
        assert set(backend.waits) <= {"MainThread"}, "only the end of the capture waits"
        told = seen.report["fingerprint"]["cpu"]
        assert (told["backend"], told["reason"], told["outstanding"], told["lost"]) == ("late", "a test", 0, 0)
    assert "fingerprint" not in at_once.report
    if (name, mode) == ("undeclared_writes", "verify"):
        assert at_once.coverage["undeclared_writes"] == 2, "the program does what it is there for"


def test_the_device_time_of_an_event_is_that_of_its_last_own_output(tmp_path):
    seen = observed(training, tmp_path / "run", LateBackend())
    events, slots = seen.tables["events"], seen.tables["slots"]
    written = {
        seq
        for seq, status, direction in zip(slots["seq"], slots["status"], slots["direction"], strict=True)
        if status == "probed" and direction in ("out", "mut")
    }
    assert {seq for seq, time in zip(events["seq"], events["t_device_ns"], strict=True) if time is not None} == written
    times = [time for time in events["t_device_ns"] if time is not None]
    assert times == sorted(times)


def test_a_lost_ticket_makes_its_slot_and_what_was_carried_from_it_unreadable_and_is_a_counted_gap(tmp_path):
    def code():
        x = torch.ones(3)
        y = x * 2
        (y + 1).tolist()

    at_once, seen = (observed(code, tmp_path / name, late) for name, late in (("a", None), ("b", LateBackend(loses=lambda one: one == 2))))
    ((mul,), (add,)) = seen.slots("mul"), seen.slots("add")
    assert (mul["out.0"]["status"], mul["out.0"]["mix64"], add["in.0"]["status"]) == ("unreadable", 0, "unreadable")
    assert add["out.0"] == at_once.slots("add")[0]["out.0"]
    gap = seen.coverage["gaps"]["digests-lost"]
    assert (gap["first_seq"], gap["touches_state"]) == (mul["out.0"]["seq"], False)
    assert not at_once.coverage["gaps"]


def test_an_undeclared_write_that_a_lost_ticket_hides_is_a_gap_and_no_slot(tmp_path):
    program = PROGRAMS["undeclared_writes"]
    program()
    at_once = observed(program, tmp_path / "at-once", None, "verify")
    everything = observed(program, tmp_path / "everything", LateBackend(), "verify")
    lost = observed(program, tmp_path / "lost", LateBackend(loses=lambda ticket: ticket > 2), "verify")
    assert all("mut.0" in slots for slots in at_once.slots("pokes"))
    assert everything.coverage["undeclared_writes"] == 2
    assert not any("mut.0" in slots for slots in lost.slots("pokes"))
    assert "undeclared_writes" not in lost.coverage
    assert lost.coverage["gaps"]["digests-lost"]["touches_state"]


def test_a_device_that_never_delivers_ends_the_capture_with_every_slot_a_counted_gap(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "PATIENCE_S", 0.0)
    seen = observed(training, tmp_path / "run", LateBackend(deaf=True))
    slots = seen.tables["slots"]
    rows = zip(slots["slot"], slots["status"], slots["shape"], strict=True)
    statuses = {status for slot, status, shape in rows if shape and not slot.startswith("rng:")}
    assert statuses <= {"unreadable", "uninitialised", "metadata"} and "unreadable" in statuses
    assert seen.coverage["gaps"]["digests-lost"]["touches_state"]


@pytest.mark.parametrize("fails", ["take", "look"])
def test_a_failure_of_ours_on_the_writing_thread_is_a_gap_and_events_go_on(fails, monkeypatch, tmp_path):
    class Failing(LateBackend):
        failed = False

        def take(self):
            if fails == "take" and not self.failed:
                Failing.failed = True
                raise ValueError("ours")
            return super().take()

    if fails == "look":
        look = Promise.look

        def once(promise):
            if not Failing.failed:
                Failing.failed = True
                raise ValueError("ours")
            return look(promise)

        monkeypatch.setattr(Promise, "look", once)
    seen = observed(training, tmp_path / "run", Failing(hold=0))
    assert Failing.failed
    events = seen.tables["events"]["seq"]
    assert events == list(range(len(events)))
    assert "ours" in seen.coverage["gaps"]["internal-error"]["examples"][0]
    assert ("unreadable" in seen.tables["slots"]["status"]) is (fails == "look")


def test_what_others_have_asked_for_is_collected_although_no_event_waits_for_it(tmp_path):
    collected = threading.Event()

    class Noting(LateBackend):
        def take(self):
            collected.set()
            return super().take()

    with answering_later(Noting()):
        session = start(RunConfig(run_dir=tmp_path / "run", user_root=tmp_path, engine="native"))
        try:
            for _ in range(5000):  # enough for the writer to take some away
                torch.ones(1)
            assert collected.wait(60)
        finally:
            session.stop("exit")


@pytest.mark.parametrize("everything", [False, True])
def test_loaded_weights_are_a_fact_of_the_contract_once_they_have_come(everything, tmp_path):
    def load_and_train():
        model = torch.nn.Linear(4, 2)
        state = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        model(torch.ones(1, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()

    def facts(contract):
        return {name: value for name, value in contract.items() if name.startswith("load.")}

    at_once = facts(observed(load_and_train, tmp_path / "at-once").contract)
    assert at_once["load.0.tensors"] == 2
    if everything:
        later = observed(load_and_train, tmp_path / "later", LateBackend(hold=1000)).contract
    else:  # the events need nothing of the device, so nobody waits for it on their behalf
        with answering_later(LateBackend(hold=1000)):
            later = observe(tmp_path / "later", load_and_train, engine="native").trace.manifest.contract
    assert facts(later) == at_once


def test_a_kept_boundary_is_the_same_although_its_digests_come_late(tmp_path):
    with asking_python():
        run = observe(tmp_path / "keys", transformer, engine="native")
        keys = [key for key in run.keys("addmm", "_foreach_addcdiv_") if key.step == 1][:4]
        assert keys
        at_once = observe(tmp_path / "at-once", transformer, keep=keys, engine="native")
        with answering_later(LateBackend(hold=500)):
            later = observe(tmp_path / "later", transformer, keep=keys, engine="native")
    assert later.facts["kept"].keys() == at_once.facts["kept"].keys() and not later.gaps
    for index in range(len(keys)):
        one, other = later.kept(index), at_once.kept(index)
        assert one.known == other.known
        assert {name: block.data for name, block in one.slots.items()} == {name: block.data for name, block in other.slots.items()}


@pytest.mark.parametrize("mode", ["verify", "full"])
def test_what_a_call_outside_the_dispatcher_writes_is_no_undeclared_write_because_it_comes_late(mode, tmp_path):
    ext = extension()

    def code():
        y = torch.ones(6)
        for _ in range(2):
            called(ext.scale_, y, 3.0)
        y + 1

    at_once, later = (observed(code, tmp_path / name, late, mode) for name, late in (("a", None), ("b", LateBackend(150))))
    assert len(at_once.slots("extension.outside_extension.scale_")) == 2
    assert "undeclared_writes" not in at_once.coverage
    assert not differences(at_once, later) and later.coverage == at_once.coverage


@pytest.mark.filterwarnings("ignore::UserWarning")  # the programs' own
@pytest.mark.parametrize("name", [name for name in catalogue.load() if name.startswith("kinds.")])
def test_tensors_that_are_taken_apart_say_the_same_when_their_digests_come_late(name, tmp_path):
    program = catalogue.PROGRAMS[name]
    if program.missing():
        pytest.skip(f"this torch has no {program.missing()}")
    program.run()  # what torch sets up at its first use is not part of any
    runs = []
    for late in (None, LateBackend(120)):
        torch.manual_seed(0)
        runs.append(observed(program.run, tmp_path / str(len(runs)), late, "verify"))
    assert not differences(*runs) and runs[0].coverage == runs[1].coverage
