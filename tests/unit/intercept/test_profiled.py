"""Claims: a profiled step says how long each kernel takes, by the name that traces have, and names what one of both did not see."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from opguard_core.intercept.joined import joined  # noqa: E402
from opguard_core.intercept.profiled import Kernel, ProfiledStep, demangled, is_kernel, told  # noqa: E402

MANGLED = "_ZN2at6native3addEPfi"
PLAIN = "at::native::add(float*, int)"


class Event:
    def __init__(self, name, kind=None):
        self.name = lambda: name
        if kind is not None:
            self.is_user_annotation = lambda: kind == "range"


def test_times_go_by_the_recorded_name():
    found = told(
        [Kernel(PLAIN, 10), Kernel(PLAIN, 30), Kernel("gemm", 7)],
        [("kernel", MANGLED), ("kernel", MANGLED), ("copy", ""), ("kernel", "gemm")],
    )
    assert found["kernel_times"] == {MANGLED: {"count": 2, "mean_ns": 20}, "gemm": {"count": 1, "mean_ns": 7}}
    assert found["kernel_check"] == {"profiler": 3, "shim": 3, "both": 3, "missed": {}, "alone": {}, "graphs": 0}


def test_differences_are_named():
    found = told([Kernel("gemm", 10), Kernel("other", 1)], [("kernel", "gemm"), ("cooperative kernel", "gemm"), ("graph", "")])
    assert found["kernel_check"] == {"profiler": 2, "shim": 2, "both": 1, "missed": {"other": 1}, "alone": {"gemm": 1}, "graphs": 1}
    replayed = told([Kernel("gemm", 10)] * 2, [("graph", "gemm"), ("graph", "gemm"), ("copy", "")])
    assert (replayed["kernel_check"]["both"], replayed["kernel_check"]["graphs"]) == (2, 0)
    assert found["kernel_times"]["other"] == {"count": 1, "mean_ns": 1}


def test_without_a_shim_there_are_times_alone():
    assert told([Kernel("gemm", 10)], None) == {"kernel_times": {"gemm": {"count": 1, "mean_ns": 10}}}


def test_ranks_are_joined_by_their_counts():
    parts = [
        told([Kernel("gemm", 10)], [("kernel", "gemm")]),
        told([Kernel("gemm", 30), Kernel("gemm", 20), Kernel("add", 4)], [("kernel", "gemm")]),
        {},
    ]
    found = joined(parts)
    assert found["kernel_times"] == {"gemm": {"count": 3, "mean_ns": 20}, "add": {"count": 1, "mean_ns": 4}}
    assert found["kernel_check"] == {"profiler": 4, "shim": 2, "both": 2, "graphs": 0, "missed": {"gemm": 1, "add": 1}, "alone": {}}
    assert joined([{}, {"kernel_times_reason": "no card"}]) == {}


def test_names_are_demangled_as_the_profiler_does():
    assert demangled(MANGLED) == PLAIN
    assert demangled("ampere_sgemm") == "ampere_sgemm"
    assert demangled("_Z") == "_Z"


@pytest.mark.parametrize(
    ("event", "kernel"),
    [
        (Event("gemm", "kernel"), True),
        (Event("gemm"), True),
        (Event("Memcpy HtoD (Pageable -> Device)", "copy"), False),
        (Event("step", "range"), False),
        (Event("ProfilerStep#3"), False),
        (Event("Memset (Device)"), False),
    ],
)
def test_only_kernels_count(event, kernel):
    assert is_kernel(event) is kernel


def test_without_a_card_there_is_a_reason():
    step = ProfiledStep()
    if torch.cuda.is_initialized():
        pytest.skip("this process uses a card")
    assert not step.begin()
    assert step.why_not == "the program uses no card"
