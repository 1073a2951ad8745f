"""Calls that the dispatcher does not see, as pivots: a kernel that fills a buffer, one that writes in place, one that nobody observed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.script import Held, Script, Tensor
from tests.unit.certify.test_origins import T, in_step, other


def kernel(content=None, *, operator="triton.scale_kernel", old=None, args="n=32;grid=[4]"):
    """A kernel that writes h, scaled, into a buffer: one that nobody has written yet, or one with old bytes."""

    def change(s: Script, t: T) -> None:
        buffer = replace(s.given((4, 8), old or 0), status="probed" if old else "uninitialised")
        filled = s.op(operator, [t["h"], buffer], (4, 8), content, into=replace(buffer, status="probed"), at="scale(h)", args=args)
        t["h"] = filled

    return in_step(1, "after mm", change)


def test_a_kernel_that_gives_other_bytes_for_the_same_is_the_pivot(both):
    verdict = both(kernel(), kernel(Held(77)))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.operator, verdict.pivot.slot) == ("triton.scale_kernel", "mut.1")
    assert (verdict.pivot.origin, verdict.pivot.origin_alternatives) == ("operator", [])


def test_a_constant_of_a_kernel_is_its_argument(both):
    verdict = both(kernel(), kernel(args="n=32;grid=[8]"))
    assert (verdict.pivot.operator, verdict.pivot.origin) == ("triton.scale_kernel", "argument")


@pytest.mark.parametrize(
    ("left", "right", "origin", "others"),
    [
        ("2=43526048;3=0", "2=28943200;3=0", "operator", ["argument"]),  # a kernel's handle, in memory that lies low
        ("2=43526048;3=0", "2=address;3=0", "operator", ["argument"]),
        ("2=43526048;3=0", "2=28943200;3=1", "argument", []),
        ("2=43526047", "2=28943200", "argument", []),  # memory is given out in sixteens
        ("2=4096", "2=8192", "argument", []),
        ("2=43526048", "3=43526048", "argument", []),
    ],
)
def test_a_number_that_may_be_an_address_is_no_proof(both, left, right, origin, others):
    sides = [kernel(content, operator="extension.ext.scale", args=args) for content, args in ((None, left), (Held(77), right))]
    pivot = both(*sides).pivot
    assert (pivot.operator, pivot.origin, pivot.origin_alternatives) == ("extension.ext.scale", origin, others)
    assert both(sides[0], kernel(operator="extension.ext.scale", args=left)).verdict == "identical"


def test_functions_of_one_module_are_different_work(both):
    verdict = both(kernel(operator="extension.ext.scale"), kernel(Held(77), operator="extension.ext.rescale"))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("structure", "scale(h)")


def test_generated_kernels_may_be_numbered_in_another_order(both):
    verdict = both(kernel(operator="inductor.cpp_fused_mul_3"), kernel(operator="inductor.cpp_fused_mul_7"))
    assert verdict.verdict == "identical"


@pytest.mark.parametrize(
    ("operator", "shape", "origin"),
    [
        ("inductor.cpp_fused_mul_3", (), "argument"),
        ("inductor.cpp_fused_mul_3", (3,), "input-data"),
        ("extension.ext.scale", (), "input-data"),
    ],
)
def test_a_number_that_a_compiler_hands_to_its_kernel_is_an_argument(both, operator, shape, origin):
    def scaled(by: int):
        def change(s: Script, t: T) -> None:
            t["h"] = s.op(operator, [t["h"], s.given(shape, by)], (4, 8), Held(70 + by), at="h * C")

        return in_step(1, "after mm", change)

    pivot = both(scaled(1), scaled(2)).pivot
    assert (pivot.operator, pivot.slot, pivot.origin) == (operator, "in.1", origin)


def hidden(*changed: int):
    """A call that nobody observes writes h between two operators, differently on the sides that are named."""

    def change(s: Script, t: T) -> None:
        t["h"] = Tensor.holding(t["h"], Held(t["h"].held.word + sum(changed)))

    return in_step(1, "after mm", change)


def test_a_write_that_nobody_observed_stays_one(both):
    assert both(hidden(1), hidden(2)).pivot.origin == "unobserved-producer"
    assert both(None, hidden(2)).pivot.origin == "mutated"


def test_bytes_that_changed_on_their_way_into_a_kernel_are_no_fault_of_it(both):
    def called(*changed: bool):
        def change(s: Script, t: T) -> None:
            t["h"] = s.op("triton.scale_kernel", [other(t["h"]) if any(changed) else t["h"]], (4, 8), at="scale(h)")

        return in_step(1, "after mm", change)

    verdict = both(called(), called(True))
    assert (verdict.pivot.operator, verdict.pivot.origin) == ("triton.scale_kernel", "mutated")
