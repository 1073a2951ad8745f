"""The planted faults of the matrix, our side: the operator or its first consumer every time, and no false alarm.

The same plants as `python -m tests.benchmarks --only matrix`, which sets what PyTorch's DebugMode says beside it.
"""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.full]

from tests.benchmarks.detectors import OpGuard  # noqa: E402
from tests.benchmarks.matrix import TINY, Matrix, right_at_last  # noqa: E402
from tests.benchmarks.plants import PLANTS, StrayWrite, build, operators_of, replaced_kernels, train  # noqa: E402

MODES = ("verify", "full", "trusted", "sentinel")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """The rows run lazily; references are shared between them."""
    with replaced_kernels(operators_of()) as kernels:
        yield Matrix(tmp_path_factory.mktemp("matrix"), kernels, [OpGuard(mode) for mode in MODES], TINY, steps=3)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.title)
def test_a_planted_fault_is_named_and_nothing_else_is(grid, plant):
    cells = grid.row(plant)
    if plant.fault is None:
        assert cells == dict.fromkeys(MODES, "quiet")
        return
    where = "first consumer" if isinstance(plant.fault, StrayWrite) else "exact operator"
    assert (cells["verify"], cells["full"]) == (where, where)
    assert cells["sentinel"] == f"exact step; its replay: {where}"
    assert right_at_last(plant.title, cells["trusted"])
    assert grid.alarms[plant.title, "verify"].text == plant.origin


def test_a_fault_below_the_dispatcher_changes_what_is_computed_from_its_step_on():
    plant = PLANTS[2]
    with replaced_kernels(operators_of((plant,))) as kernels:
        right, wrong = (train(build(TINY, plant, suspect=suspect), plant, kernels, steps=3, suspect=suspect) for suspect in (False, True))
    assert right[: plant.step] == wrong[: plant.step]
    assert right[plant.step :] != wrong[plant.step :]
