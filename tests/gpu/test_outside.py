"""Faults inside a Triton kernel and inside a kernel of a pybind11 extension: found at the kernel, whose name both sides tell."""

import argparse
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.gpu import must_find, outside  # noqa: E402  after the check above

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card: these faults are in kernels"),
]
WORK = [(case, mode) for case in must_find.cases([], outside.PROGRAMS) for mode in case["modes"]]


@pytest.mark.parametrize(("case", "mode"), WORK, ids=[f"{case['slug']}-{mode}" for case, mode in WORK])
def test_the_fault_is_found_at_its_kernel(case, mode, tmp_path):
    options = argparse.Namespace(device="cuda", python=sys.executable, timeout=300.0, engine="")
    answer = must_find.compared(case, mode, options, tmp_path, outside.PROGRAMS)
    assert not answer.get("error"), answer
    faults, said = outside.faults_of(case, mode, "cuda", answer)
    assert faults == [], said
