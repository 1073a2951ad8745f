# ruff: noqa: E402  (torch may be missing)
"""A launch of a generated kernel: what it is told to read, make and change, and that it does what the module asked for."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.guard import Guard
from opguard_core.engines.inductor.generated import read
from opguard_core.engines.inductor.launches import Allocation, CppLaunch, Launches, TritonLaunch
from tests.unit.inductor.outside import Outside
from tests.unit.inductor.test_generated import CPP_MODULE, TRITON_MODULE


def module(text, **names):
    """Namespace of the module's functions, as Inductor would have loaded it, and what observes its launches."""
    outside, generated = Outside(), read(text)
    launches = Launches(outside, generated, Guard(Coverage(lambda: 0)))
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(("def call", "class Runner")))
    kept = [line if index >= start else "" for index, line in enumerate(lines)]
    names = {"torch": torch, "float32": torch.float32, "s0": 3, "stream0": 7, "workspace_0": torch.zeros(1), **names}
    names |= {
        name: (CppLaunch if kernel.kind == "cpp" else TritonLaunch)(launches, kernel, names[name])
        for name, kernel in generated.kernels.items()
        if name in names
    }
    exec(compile("\n".join(kept), "generated.py", "exec"), names)
    return names, outside, launches


class Tuner:
    """As torch's ``CachingAutotuner``: launched by ``run``, and asked for other things by its name."""

    configs = 3

    def __init__(self):
        self.got = []

    def run(self, *args, **kwargs):
        self.got.append((len(args), kwargs, outside_of(self).muted))
        if kwargs.get("stream") is None:
            raise RuntimeError("no stream")
        return "ran"


def outside_of(tuner):
    return tuner.outside


def test_a_triton_kernel_is_launched_as_asked_and_its_trials_are_not_the_programs_operators():
    tuner = Tuner()
    device = type("Guard", (), {"__init__": lambda self, index: None, "__enter__": lambda self: None, "__exit__": lambda self, *_: None})
    names, outside, launches = module(
        TRITON_MODULE.replace("torch.cuda._DeviceGuard(0)", "guard(0)"),
        triton_poi_fused_mul_0=tuner,
        guard=device,
        empty_strided_cuda=lambda size, stride, dtype: torch.empty(size, dtype=dtype),
    )
    tuner.outside = outside
    kernel = names["triton_poi_fused_mul_0"]
    assert kernel.configs == 3
    names["Runner"]().call([torch.zeros(64)])
    assert tuner.got == [(6, {"stream": 7}, True)] and not outside.muted and outside.known == 0
    (operator, reads, text, function), (results, written) = outside.told
    assert (operator, text, function) == ("inductor.triton_poi_fused_mul_0", "xnumel=64", "call")
    # in_out_ptr0 is made, out_ptr0 (the same memory) is added to, in_ptr1 is changed; the workspace is nobody's.
    assert (reads, results, written) == (["in.1", "in.2", "in.3"], ["out.0"], ["mut.2", "mut.3"])
    assert launches.num_seen == 1
    with pytest.raises(RuntimeError, match="no stream"):
        kernel.run(torch.zeros(1))
    assert outside.told[-1] == "no stream, muted False" and outside.known == 0


def test_a_cpp_kernel_is_called_with_its_arguments_and_memory_is_told_as_unwritten():
    got, made = [], []
    allocate = Allocation(lambda size, stride, dtype: torch.empty(size, dtype=dtype), made.append)
    extern = type("Extern", (), {"mm": staticmethod(lambda *args, out: out)})
    names, outside, _ = module(
        CPP_MODULE,
        cpp_fused_gelu_mul_0=lambda *args: got.append(args),
        empty_strided_cpu=allocate,
        extern_kernels=extern,
        reinterpret_tensor=lambda tensor, *rest: tensor,
        buf9=torch.zeros(8, 8),
    )
    names["call"]([torch.zeros(8, 8), torch.zeros(8, 8)])
    assert len(got) == 2 and got[0][-1] == 3 and len(made) == 3
    first, second = outside.told[::2]
    assert first == ("inductor.cpp_fused_gelu_mul_0", ["in.0", "in.2", "in.4"], "ks0=3", "call")
    assert outside.told[1] == (["out.1", "out.3"], ["mut.0", "mut.4"])
    assert second[1] == ["in.0", "in.1", "in.2", "in.3", "in.4"]  # what was handed over before may be changed in part only
