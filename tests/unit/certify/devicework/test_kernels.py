"""How the kernels of a boundary differ, in a word that does not depend on which side is called the suspect."""

from collections import Counter

import pytest

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.certify.devicework.kernels import MAX_KERNELS, how_differ
from opguard_core.trace.reader import Run
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from tests.support.launch_rows import ADD, ADD_WIDE, GELU, OTHER_TILE, SPLIT, SPLIT_SUM, TILE, Device
from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run

PROGRAM = gpt(GptShape(layers=1, steps=2))
AT = PROGRAM.find(1, operator="aten.gelu.default")[0]


def works(*names):
    return Counter(("kernel", name) for name in names)


@pytest.mark.parametrize(
    ("reference", "suspect", "how"),
    [
        ((TILE, ADD), (ADD, TILE), "equal"),
        ((), (), "none"),
        ((TILE,), (TILE, TILE), "other counts"),
        ((TILE,), (SPLIT, SPLIT_SUM), "another split"),
        ((TILE,), (OTHER_TILE,), "another tile"),
        ((ADD,), (ADD_WIDE,), "another tile"),
        ((TILE,), (GELU,), "other kernels"),
        ((TILE,), (), "one side only"),
    ],
)
def test_the_word_says_how_kernels_differ(reference, suspect, how):
    assert how_differ(works(*reference), works(*suspect)) == how == how_differ(works(*suspect), works(*reference))


def diverged(tmp_path, reference, suspect):
    write_run(tmp_path / "reference", PROGRAM, mode="verify", launches=reference)
    write_run(tmp_path / "suspect", Side(PROGRAM, [Corrupt(AT)]), mode="verify", launches=suspect)
    verdict = compare(Run.open(tmp_path / "reference"), Run.open(tmp_path / "suspect"))
    assert verdict.verdict == "diverged", verdict.reasons
    return to_dict(verdict)


def test_the_pivot_names_the_kernels_of_both_sides(tmp_path):
    answer = diverged(tmp_path, Device(at={AT: {TILE: 1}}), Device(at={AT: {SPLIT: 1, SPLIT_SUM: 2}}))
    kernels = answer["pivot"]["kernels"]
    assert kernels["how"] == "another split"
    assert [(row["name"], row["count"]) for row in kernels["reference"]] == [(TILE, 1)]
    assert [(row["kernel"], row["count"]) for row in kernels["suspect"]] == [(SPLIT, 1), (SPLIT_SUM, 2)]
    assert {row["kernel"] for row in answer["device_work"]["one_sided"]} >= {SPLIT, SPLIT_SUM}
    schema = {**compare_schema(), "anyOf": None}
    parts = compare_schema()["$defs"]
    assert not faults(answer["pivot"], parts["pivot"], root=compare_schema())
    assert not faults(answer["device_work"], parts["device_work"], root=compare_schema())
    assert schema["$defs"] == parts


def test_one_side_that_was_not_watched_is_told(tmp_path):
    kernels = diverged(tmp_path, Device(at={AT: {TILE: 1}}), None)["pivot"]["kernels"]
    assert (kernels["how"], kernels["suspect"]) == ("unknown", None)


def test_runs_without_a_device_say_nothing_about_one(tmp_path):
    answer = diverged(tmp_path, None, None)
    assert "device_work" not in answer
    assert "kernels" not in answer["pivot"]


def test_a_list_of_many_kernels_is_cut_and_counted(tmp_path):
    many = {f"kernel_{at}_of_many": 1 for at in range(MAX_KERNELS + 5)}
    kernels = diverged(tmp_path, Device(at={AT: many}), Device(at={AT: many}))["pivot"]["kernels"]
    assert (kernels["how"], len(kernels["reference"]), kernels["reference_more"]) == ("equal", MAX_KERNELS, 5)
