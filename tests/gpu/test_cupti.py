"""Our own subscriber of CUPTI on a card: kernels of a graph by name, alike with the shim's, and a profiler that starts finds CUPTI free."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.gpu import cupti  # noqa: E402  after the check above

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card: CUPTI records what runs there"),
]


def test_shim_and_cupti_see_the_same_and_the_profiler_is_left_in_peace(tmp_path):
    out = tmp_path / "rows.md"
    assert cupti.main(["--out", str(out)]) == 0, out.read_text()
