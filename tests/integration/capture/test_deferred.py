# ruff: noqa: E402  (torch may be missing)
"""A device that answers later changes nothing that a trace says, and no thread of the training ever waits for it."""

import contextlib
import gc
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines import deferred
from opguard_core.fingerprint.digest import Digests
from opguard_core.probe.promise import Promise
from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing
from tests.support.keeping import observe
from tests.support.late import LateBackend, answering_later
from tests.support.late_training import PROGRAMS, training, transformer
from tests.support.outside.building import extension
from tests.support.outside.calling import called

MODES = ("verify", "full", "trusted", "sentinel")


def seen_rows(seen):
    """Everything but the clocks."""
    events = [event._replace(t_host_ns=0, t_device_ns=None) for event in seen.sink.events]
    return events, seen.sink.slots, seen.sink.frames, seen.sink.stacks, seen.sink.lifetimes


@contextlib.contextmanager
def without_collections():
    """When a cycle is freed must not depend on what is allocated beside it: it is when a storage is found freed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def runs(program, mode, *backends, **options):
    """Run a program once with each backend (None: everything answers at once), all from this very place."""
    program()  # what torch sets up at its first use is not part of any
    found = []
    for backend in backends:
        with (
            contextlib.nullcontext() if backend is None else answering_later(backend),
            capturing(mode, engine="dispatch", **options) as seen,
        ):
            program()
        found.append(seen)
    return found


def assert_equal(seen, expected):
    for name, mine, theirs in zip(("events", "slots", "frames", "stacks", "lifetimes"), seen_rows(seen), seen_rows(expected), strict=True):
        pairs = zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine[seq], theirs[seq]) for seq in theirs]
        different = [(one, other) for one, other in pairs if one != other]
        assert not different, (name, len(different), different[0])
    assert seen.coverage == expected.coverage


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_says_the_same_when_digests_come_late_and_in_another_order(name, mode):
    late = [LateBackend(hold) for hold in ((0, 150) if mode == "verify" else (150,))]
    at_once, *later = runs(PROGRAMS[name], mode, None, *late)
    for seen, backend in zip(later, late, strict=True):
        assert_equal(seen, at_once)
        assert set(backend.waits) <= {"MainThread"}, "only the end of the capture waits"
        report = seen.session.engines["sentinel" if mode == "sentinel" else "dispatch"]["fingerprint"]
        assert report["cpu"]["backend"] == "late" and report["cpu"]["reason"] == "a test"
        assert (report["cpu"]["outstanding"], report["cpu"]["lost"], report["held_back"]) == (0, 0, 0)
        assert report["events_deferred"] > 0
    if (name, mode) == ("undeclared_writes", "verify"):
        assert at_once.coverage["undeclared_writes"] == 2, "the program does what it is there for"


def test_the_device_time_of_an_event_is_that_of_its_last_own_output():
    class Noting(LateBackend):
        def submit(self, views):
            tickets = super().submit(views)
            addresses.update(dict.fromkeys(tickets))
            return tickets

    addresses = {}
    (seen,) = runs(training, "full", Noting())
    probed = [[slot for slot in seen.sink.slots[event.seq] if slot.status == "probed"] for event in seen.events]
    for event, slots in zip(seen.events, probed, strict=True):
        written = [slot for slot in slots if slot.direction in ("out", "mut")]
        assert (event.t_device_ns is not None) == bool(written), event.operator
    times = [event.t_device_ns for event in seen.events if event.t_device_ns is not None]
    assert times == sorted(times) and {time // 1000 for time in times} <= set(addresses)
    assert all(event.t_device_ns is None for event in seen.states), "a state boundary has no outputs"
    assert all(event.stream is None for event in seen.sink.events), "no tensor is on a device with streams"


def test_a_lost_ticket_makes_its_slot_and_what_was_carried_from_it_unreadable_and_is_a_counted_gap():
    def code():
        x = torch.ones(3)
        y = x * 2
        (y + 1).tolist()

    # The tickets in mode full: x, y, y + 1, then nothing else is digested: all that follows is carried.
    at_once, seen = runs(code, "full", None, LateBackend(loses=lambda ticket: ticket == 2))
    assert seen.slots(seen.of("mul"))["out.0"].status == "unreadable"
    assert seen.slots(seen.of("mul"))["out.0"].mix64 == 0
    assert seen.slots(seen.of("add"))["in.0"].status == "unreadable"
    assert seen.slots(seen.of("add"))["out.0"] == at_once.slots(at_once.of("add"))["out.0"]
    gap = seen.coverage["gaps"]["digests-lost"]
    assert (gap["count"], gap["first_seq"], gap["touches_state"]) == (2, seen.of("mul").seq, False)
    assert gap["examples"] == ["the device did not deliver its digests"]
    assert not at_once.coverage["gaps"]


def test_a_lost_parameter_touches_state_and_a_lost_part_of_a_total_makes_the_total_unreadable():
    (seen,) = runs(training, "sentinel", LateBackend(loses=lambda ticket: ticket == 1))
    first, *others = [seen.slots(state) for state in seen.states]
    assert first["param"].status == "unreadable" and first["grad"].status == "probed"
    assert {state["param"].status for state in others if "param" in state} == {"probed"}
    gap = seen.coverage["gaps"]["digests-lost"]
    assert gap["touches_state"] and gap["first_seq"] == seen.states[0].seq
    assert "a tensor of kind param" in gap["examples"][0]


def test_an_undeclared_write_that_a_lost_ticket_hides_is_a_gap_and_no_slot():
    program = PROGRAMS["undeclared_writes"]
    at_once, everything = runs(program, "verify", None, LateBackend())
    pokes = [event.seq for event in at_once.events if event.operator.endswith("pokes.")]
    (lost,) = runs(program, "verify", LateBackend(loses=lambda ticket: ticket > 2))
    assert all("mut.0" in at_once.slots(at_once.sink.events[seq]) for seq in pokes)
    assert everything.coverage["undeclared_writes"] == 2
    assert not any("mut.0" in lost.slots(lost.sink.events[seq]) for seq in pokes)
    assert "undeclared_writes" not in lost.coverage


def test_a_device_that_never_delivers_ends_the_capture_with_every_slot_a_counted_gap(monkeypatch):
    monkeypatch.setattr(deferred, "PATIENCE_S", 0.5)
    monkeypatch.setattr(deferred, "settle", settle_at_once)
    (seen,) = runs(training, "full", LateBackend(deaf=True))
    slots = [slot for rows in seen.sink.slots.values() for slot in rows if not slot.slot.startswith("rng:")]
    assert {slot.status for slot in slots if slot.nbytes > 8 or slot.shape} <= {"unreadable", "uninitialised", "metadata"}
    gap = seen.coverage["gaps"]["digests-lost"]
    assert gap["count"] == sum(slot.status == "unreadable" for slot in slots) and gap["touches_state"]


def settle_at_once(known):
    known.lose("gave up")
    return known.look()


def test_memory_is_bounded_and_who_waits_for_room_does_not_wait_for_the_device_itself(monkeypatch):
    monkeypatch.setattr(deferred, "MAX_WAITING", 60)
    backend = LateBackend(hold=10_000)
    at_once, seen = runs(training, "full", None, backend)
    assert_equal(seen, at_once)
    assert "opguard-digests" in backend.waits, "the waiting thread asks the device for what the oldest event lacks"
    assert seen.session.engines["dispatch"]["fingerprint"]["held_back"] > 0


def test_a_device_that_never_answers_does_not_hold_the_training_for_ever(monkeypatch):
    monkeypatch.setattr(deferred, "MAX_WAITING", 60)
    monkeypatch.setattr(deferred, "PATIENCE_S", 0.0)
    monkeypatch.setattr(deferred, "settle", settle_at_once)
    (seen,) = runs(training, "full", LateBackend(deaf=True))
    assert seen.session.engines["dispatch"]["fingerprint"]["held_back"] == 1
    assert [event.seq for event in seen.sink.events] == list(range(len(seen.sink.events)))


def test_without_a_thread_to_be_had_events_are_handed_on_by_who_emits_them(monkeypatch):
    monkeypatch.setattr(deferred, "MAX_WAITING", 60)
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "opguard-digests":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    at_once, seen = runs(training, "full", None, LateBackend())
    assert_equal(seen, at_once)


def test_a_failure_of_ours_on_the_waiting_thread_is_a_gap_and_later_events_go_on(monkeypatch):
    resolve, failed = deferred.resolve, []

    def failing(event, slots):
        if event.operator == "aten.addmm.default" and not failed:
            failed.append(event.seq)
            raise ValueError("ours")
        return resolve(event, slots)

    monkeypatch.setattr(deferred, "resolve", failing)
    (seen,) = runs(training, "full", LateBackend())
    assert {slot.status for slot in seen.sink.slots[failed[0]]} == {"unreadable"}
    assert seen.coverage["gaps"]["internal-error"]["first_seq"] == failed[0]
    assert [event.seq for event in seen.sink.events] == list(range(len(seen.sink.events)))


def test_where_every_tensor_answers_at_once_rows_go_straight_to_the_writer():
    (seen,) = runs(training, "full", None)
    if torch.version.cuda is None and torch.version.hip is None:
        assert seen.session.context.sink is seen.sink and seen.session.context.streams is None
    assert not any(thread.name == "opguard-digests" for thread in threading.enumerate())


def test_events_pass_straight_through_until_the_first_promise(monkeypatch):
    monkeypatch.setattr("opguard_core.engines.deferred.any_made", lambda: False)
    passed = []

    class Sink:
        def emit(self, event, slots):
            passed.append((event, slots))

    sink = deferred.DeferredSink(Sink())
    sink.emit("event", ())
    assert passed == [("event", ())] and sink._thread is None
    sink.close()


def test_loaded_weights_are_a_fact_of_the_contract_once_they_have_come(tmp_path):
    def contract(backend):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with contextlib.nullcontext() if backend is None else answering_later(backend):
            run = observe(folder, load_and_train, engine="dispatch")
        return {name: value for name, value in run.trace.manifest.contract.items() if name.startswith("load.")}

    def load_and_train():
        model = torch.nn.Linear(4, 2)
        state = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        model(torch.ones(1, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()

    at_once = contract(None)
    assert at_once["load.0.tensors"] == 2
    assert contract(LateBackend(hold=1000)) == at_once


def test_a_kept_boundary_is_the_same_although_its_digests_come_late(tmp_path):
    keys = [key for key in observe(tmp_path / "keys", transformer, engine="dispatch").keys("addmm", "_foreach_addcdiv_") if key.step == 1][
        :4
    ]
    assert keys
    at_once = observe(tmp_path / "at-once", transformer, keep=keys, engine="dispatch")
    with answering_later(LateBackend(hold=500)):
        later = observe(tmp_path / "later", transformer, keep=keys, engine="dispatch")
    assert later.facts["kept"].keys() == at_once.facts["kept"].keys()
    for index in range(len(keys)):
        one, other = later.kept(index), at_once.kept(index)
        assert one.known == other.known
        assert {name: block.data for name, block in one.slots.items()} == {name: block.data for name, block in other.slots.items()}


def test_the_tensors_of_one_side_of_an_operator_and_of_a_state_are_asked_for_together():
    def code():
        tensors = [torch.full((3,), float(k)) for k in range(150)]
        torch._foreach_add_(tensors, 1.0)

    backend = LateBackend()
    runs(code, "verify", backend)
    # Each tensor as it is made; what the list operator reads and what it wrote, in launches of at most 64.
    assert backend.launches == [1] * 150 + [64, 64, 22] * 2
    backend = LateBackend()
    runs(training, "sentinel", backend)
    assert backend.launches == [10, 10], "each step: four parameters and gradients, six pieces of the optimizer's state"


def test_digests_in_rows_are_digests():
    (seen,) = runs(training, "verify", LateBackend())
    assert not any(isinstance(slot.mix64, Promise) for rows in seen.sink.slots.values() for slot in rows)
    assert isinstance(fingerprint(torch.ones(3)), Digests)


def outside_calls(ext):
    y = torch.ones(6)
    for _ in range(2):
        called(ext.scale_, y, 3.0)
    return y + 1


@pytest.mark.parametrize("mode", ["verify", "full"])
def test_what_a_call_outside_the_dispatcher_writes_is_no_undeclared_write_because_it_comes_late(mode):
    ext = extension()
    at_once, later = runs(lambda: outside_calls(ext), mode, None, LateBackend(150))
    assert [event.operator for event in at_once.events].count("extension.outside_extension.scale_") == 2
    assert "undeclared_writes" not in at_once.coverage
    assert_equal(later, at_once)
