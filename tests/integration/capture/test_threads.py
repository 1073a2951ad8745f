# ruff: noqa: E402  (torch may be missing)
"""Every thread the program starts is observed from its first instruction."""

import _thread
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.support.capturing import capturing


def work(x):
    return x * 2


def test_a_thread_is_a_lane_named_after_its_target():
    x = torch.ones(2)
    with capturing() as seen:
        thread = threading.Thread(target=work, args=(x,))
        thread.start()
        thread.join()
        x + 1
    event = seen.of("mul")
    assert (event.thread, seen.of("add").thread) == ("Thread:work", "main")
    assert event.thread_index != seen.of("add").thread_index
    assert seen.text(event) == "x * 2"


def test_a_thread_class_with_its_own_run_is_observed():
    class Worker(threading.Thread):
        def run(self):
            torch.ones(2) * 3

    with capturing() as seen:
        worker = Worker()
        worker.start()
        worker.join()
    assert seen.of("mul").thread.endswith("Worker")


def test_pool_workers_share_one_lane():
    with capturing() as seen, ThreadPoolExecutor(3) as pool:
        list(pool.map(work, [torch.ones(2)] * 12))
    events = [event for event in seen.events if "mul" in event.operator]
    assert len(events) == 12
    assert {event.thread for event in events} == {"Thread:_worker"}


def test_a_raw_thread_is_observed():
    done = threading.Event()

    def raw():
        torch.ones(2) * 3
        done.set()

    with capturing() as seen:
        _thread.start_new_thread(raw, ())
        assert done.wait(10)
    assert "raw" in seen.of("mul").thread


def test_backward_on_another_thread_is_linked_to_its_forward():
    x = torch.ones(3, requires_grad=True)

    def train():
        x.exp().sum().backward()

    with capturing() as seen:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    event = next(event for event in seen.events if event.node == "ExpBackward0")
    assert event.thread == "Thread:test_backward_on_another_thread_is_linked_to_its_forward.<locals>.train"
    assert event.forward_seq == seen.of("exp").seq


def test_overlapping_threads_keep_the_event_order_dense():
    def loop():
        for _ in range(200):
            torch.ones(4) * 2

    with capturing() as seen:
        threads = [threading.Thread(target=loop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.seq for event in seen.sink.events] == list(range(len(seen.sink.events)))
    assert seen.operators().count("mul.Tensor") == 800


def test_threads_after_the_capture_run_as_before():
    with capturing():
        pass
    thread = threading.Thread(target=work, args=(torch.ones(2),))
    thread.start()
    thread.join()
    assert torch._C._len_torch_dispatch_stack() == 0


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index)) * 2


def test_forked_loader_workers_are_left_alone_and_their_batches_arrive():
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    with capturing() as seen:
        batches = [batch + 1 for batch in loader]
    assert [batch[:, 0].tolist() for batch in batches] == [[1.0, 3.0], [5.0, 7.0]]
    assert "mul.Tensor" not in seen.operators()
    first = seen.slots(seen.of("add"))["in.0"]
    assert first.status == "probed"
