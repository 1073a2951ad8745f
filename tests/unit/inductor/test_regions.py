"""What is told of compiled regions: each generated module belongs to the region that it was made for, and none goes missing."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines.inductor.generated import Generated  # noqa: E402
from opguard_core.engines.inductor.origins import Line  # noqa: E402
from opguard_core.engines.inductor.regions import MAX_TOLD, Regions  # noqa: E402


def traced(line):
    return SimpleNamespace(first=Line("train.py", line, "forward", ""))


def load(regions, region, part, code, seen=1):
    launches = SimpleNamespace(num_seen=seen)
    return regions.loaded(region, Generated(digest=code * 64), launches, f"# AOT ID: ['0_{part}']", "")


def test_pieces_of_one_compilation_keep_their_backwards_apart():
    """``DDPOptimizer`` compiles several regions under one number of Dynamo's; their backwards come later, last one first."""
    regions = Regions()
    pieces = [regions.begin(traced(line), "", "0/0") for line in (3, 7)]
    for number, piece in enumerate(pieces):
        regions.under_way(piece, str(number))
        load(regions, piece, "forward", "f")
    for number in (1, 0):
        load(regions, regions.known("0/0", str(number)), "backward", "ab"[number])
    assert [regions.facts()[f"forward#{number}"]["code"]["backward"][:1] for number in (0, 1)] == ["a", "b"]


def test_a_backward_is_nobodys_rather_than_a_wrong_regions():
    regions = Regions()
    one = regions.begin(traced(3), "", "0/0")
    assert regions.known("0/0", "9") is one, "it is the only one of its compilation"
    regions.begin(traced(7), "", "0/0")
    assert regions.known("0/0", "9") is None and regions.known("", "") is None
    for code in "ab":
        load(regions, None, "backward", code)
    assert {"unknown#0", "unknown#1"} <= regions.facts().keys()


def test_code_of_every_module_and_every_region_is_compared():
    def facts(last, second="b"):
        regions = Regions()
        for number in range(MAX_TOLD + 3):
            region = regions.begin(traced(number), "", f"{number}/0")
            load(regions, region, "backward", last if number == MAX_TOLD + 2 else "a")
            load(regions, region, "backward", second)
        assert regions.num_untold == 3 and len(regions.report()) == MAX_TOLD
        return regions.facts()

    assert facts("a") == facts("a")
    assert facts("a") != facts("c") and facts("a") != facts("a", second="c")
    assert set(facts("a")["forward#0"]["code"]) == {"backward", "backward#1"}
