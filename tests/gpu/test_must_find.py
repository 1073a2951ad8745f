"""The programs of `programs/` on a card: what `compare` answers against the truth, and how often the stream race is found."""

import argparse
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.gpu import must_find, race_loop  # noqa: E402  after the check above
from tests.gpu.rows import Rows  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card: these faults are made by kernels and streams"),
]
WORK = [(case, mode) for case in must_find.cases([]) for mode in case["modes"]]


@pytest.mark.parametrize(("case", "mode"), WORK, ids=[f"{case['slug']}-{mode}" for case, mode in WORK])
def test_the_answer_is_the_truth(case, mode, tmp_path):
    options = argparse.Namespace(device="cuda", python=sys.executable, timeout=120.0, engine="")
    answer = must_find.compared(case, mode, options, tmp_path)
    assert not answer.get("error"), answer
    faults, said = must_find.judge(must_find.wanted(case, mode, "cuda"), answer)
    assert faults == [], said


@pytest.mark.parametrize("mode", race_loop.MODES)
def test_looking_does_not_make_a_race_go_away(mode, tmp_path):
    assert race_loop.measure(torch.device("cuda"), [mode], race_loop.AUTO, 20, Rows(tmp_path / "rows.md"))
