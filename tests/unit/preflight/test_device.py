"""What a preflight says about device work: sites that launch it on both sides, on one, or nowhere; kernel times for the plan."""

from opguard_core.preflight.discover import discover
from opguard_core.trace.manifest import RunManifest
from tests.support.launch_rows import ADD, CUSTOM, TILE
from tests.support.memory import memory_run
from tests.support.script import Script
from tests.unit.preflight.conftest import training

WATCHED = {"launches": {"active": True, "recorded": 9, "lost": 0, "escaped": 0}}


class Launching(Script):
    """A program whose operators launch kernels; ``idle`` ones launch nothing."""

    def __init__(self, kernels, extra=()):
        super().__init__()
        self.kernels, self.extra = kernels, extra

    def event(self, operator, slots, **facts):
        super().event(operator, slots, **facts)
        if operator in self.kernels:
            self.launched(self.kernels[operator])
        if operator in self.extra:
            self.loose(CUSTOM)


def look(kernels, *, extra=(), times=None):
    script = Launching(kernels, extra)
    run = training(script).close(engines=WATCHED)
    return memory_run(list(run.ranks.values()), extra={"kernel_times": times}) if times else run


KERNELS = {"aten.linear.default": TILE, "aten.mm.default": TILE, "aten.relu.default": ADD}


def test_sites_are_sorted_by_the_work_they_do():
    without = {name: kernel for name, kernel in KERNELS.items() if name != "aten.relu.default"}
    found = discover(look(KERNELS), look(without)).working
    assert {site.key.operator for site, _ in found.one_sided} == {"relu"}
    assert all(counts[0] > 0 == counts[1] for _, counts in found.one_sided)
    assert found.both == 3  # two layers of linear, and its gradient
    assert found.idle > 0
    assert found.alone == ((0, 0), (0, 0))


def test_work_without_a_boundary_and_leads_are_in_the_report():
    found = discover(look(KERNELS), look({**KERNELS, "aten.mul.Tensor": "other_kernel"}, extra=("aten.mul.Tensor",)))
    assert found.device_work["suspect"]["0"]["touching"] == 3
    assert {(row["kernel"], row["only"]) for row in found.device_work["one_sided"]} == {(CUSTOM, "suspect"), ("other_kernel", "suspect")}


def test_kernel_times_of_both_sides_are_joined():
    found = discover(
        look(KERNELS, times={TILE: {"count": 2, "mean_ns": 10.0}}), look(KERNELS, times={TILE: {"count": 1, "mean_ns": 30.0}, ADD: 5})
    )
    assert found.kernel_times == {TILE: {"mean_ns": 30.0}, ADD: {"mean_ns": 5.0}}
    assert found.device_work["reference"]["0"]["time"]["share"] == 1.0


def test_programs_without_a_device_say_nothing_about_one(run):
    found = discover(run(), run())
    assert (found.working, found.device_work, found.kernel_times) == (None, None, {})


def test_a_manifest_keeps_kernel_times():
    assert RunManifest(extra={"kernel_times": {TILE: 1}}).to_dict()["kernel_times"] == {TILE: 1}
