"""What a generated module's text says: kernels, what each reads and writes, where they are launched, and when two are the same code."""

from opguard_core.engines.inductor.generated import CPP, TRITON, digest_of, read

CPP_MODULE = """
# AOT ID: ['0_forward']
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
empty_strided_cpu = None

cpp_fused_gelu_mul_0 = async_compile.cpp_pybinding(['float*', 'bool*', 'const float*', 'float*', 'float*', 'const int64_t'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* in_out_ptr0,
                       bool* in_out_ptr1,
                       const float* in_ptr0,
                       float* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0)
{
    auto out_ptr2 = in_out_ptr1;
    {
        auto tmp0 = at::vec::Vectorized<float>::loadu(in_out_ptr0 + x0, 8);
        in_out_ptr1[static_cast<int64_t>(x0)] = static_cast<bool>(tmp0);
        tmp1.store(out_ptr0 + x0);
        atomic_add(&out_ptr1[x0], tmp1);
        tmp2.store(in_out_ptr0 + x0);
    }
}
''')

async_compile.wait(globals())

def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    buf0 = empty_strided_cpu((8, 8), (8, 1), float32)
    # Topologically Sorted Source Nodes: [linear, gelu], Original ATen: [aten.addmm, aten.gelu]
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    buf1 = buf0; del buf0  # reuse
    buf2 = reinterpret_tensor(buf9, (8, 8), (8, 1), 0)  # alias
    buf3 = empty_strided_cpu((8, 8), (8, 1), float32)
    buf4 = empty_strided_cpu((8, 8), (8, 1), float32)
    cpp_fused_gelu_mul_0(buf1, buf3, arg0_1, buf4, reinterpret_tensor(buf2, (8, 8), (8, 1), 0), s0)
    cpp_fused_gelu_mul_0(buf1, buf3, arg0_1, arg1_1, buf4, s0)
    return (buf1, )

if __name__ == "__main__":
    print('/tmp/torchinductor_root/x.py')
"""

TRITON_MODULE = """
async_compile = AsyncCompile()

# kernel path: /tmp/torchinductor_root/ab/cab.py
triton_poi_fused_mul_0 = async_compile.triton('triton_poi_fused_mul_0', '''
import triton
import triton.language as tl

@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    return arg0_0 + arg1_0

@triton_heuristics.pointwise(
    size_hints={'x': 64},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'xnumel': 'i32'}},
    inductor_meta={'kernel_name': 'triton_poi_fused_mul_0', 'mutated_arg_names': ['in_out_ptr0', 'in_ptr1']},
)
@triton.jit
def triton_poi_fused_mul_0(in_out_ptr0, in_ptr0, in_ptr1, out_ptr0, ws_ptr, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tl.store(in_out_ptr0 + (x0), tmp0, xmask)
    tmp1 = tl.load(in_out_ptr0 + (x0), xmask)
    tl.atomic_add(out_ptr0 + (x0), tmp1, xmask)
''', device_str='cuda')

mine_0 = async_compile.triton('mine', '''
@triton_heuristics.user_autotune(configs=[], inductor_meta={'kernel_name': 'mine_0'})
@triton.jit
def mine(x, y, n, BLOCK : tl.constexpr):
    tl.store(y, tl.load(x))
''', device_str='cuda')

class Runner:
    def call(self, args):
        arg0_1, = args
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((64, ), (1, ), torch.float32)
            triton_poi_fused_mul_0.run(buf0, arg0_1, arg0_1, buf0, workspace_0, 64, stream=stream0)
        return (buf0, )
"""


def told(kernel):
    return {one.name: (one.is_read, one.is_written) for one in kernel.parameters}


def test_what_a_cpp_kernel_reads_and_writes_is_in_its_text():
    kernel = read(CPP_MODULE).kernels["cpp_fused_gelu_mul_0"]
    assert kernel.kind == CPP
    assert told(kernel) == {
        "in_out_ptr0": (True, True),
        "in_out_ptr1": (False, True),  # only a name for what is replaced
        "in_ptr0": (True, False),
        "out_ptr0": (False, True),
        "out_ptr1": (True, True),  # adds to what is there
        "ks0": (True, False),
    }


def test_what_a_triton_kernel_reads_and_writes_is_in_its_text():
    found = read(TRITON_MODULE)
    kernel = found.kernels["triton_poi_fused_mul_0"]
    assert kernel.kind == TRITON
    assert told(kernel) == {
        "in_out_ptr0": (False, True),
        "in_ptr0": (True, False),
        "in_ptr1": (True, True),
        "out_ptr0": (True, True),
        "ws_ptr": (False, True),
        "xnumel": (True, False),
    }
    assert kernel.parameters[4].is_scratch
    # A kernel that the user wrote has names of its own: what it writes is not told by them.
    assert told(found.kernels["mine_0"])["y"] == (True, None)


def test_memory_that_a_launch_makes_is_told_from_memory_that_it_changes():
    found = read(CPP_MODULE)
    first, second = found.launches.values()
    assert (first.kernel, first.occurrence, second.occurrence) == ("cpp_fused_gelu_mul_0", 0, 1)
    assert first.whole == {0, 1, 3}  # a reused name is new; a view of something older is not
    assert not second.whole  # all of it was handed over before
    assert found.source_nodes == {first.line - 5: ("linear", "gelu")}
    assert [one.whole for one in read(TRITON_MODULE).launches.values()] == [{0, 3}]


def test_equal_code_has_one_digest_wherever_it_lies_and_whenever_it_was_compiled():
    moved = CPP_MODULE.replace("'0_forward'", "'7_forward'").replace("/tmp/torchinductor_root/x.py", "/home/me/y.py")
    assert read(moved).digest == read(CPP_MODULE).digest == digest_of(CPP_MODULE)
    assert read(CPP_MODULE.replace("buf1, buf3, arg0_1, arg1_1", "buf1, buf3, arg0_1, arg0_1")).digest != digest_of(CPP_MODULE)
    other = read(CPP_MODULE.replace("atomic_add(&out_ptr1[x0], tmp1)", "atomic_add(&out_ptr1[x0], tmp2)"))
    assert other.kernels["cpp_fused_gelu_mul_0"].digest != read(CPP_MODULE).kernels["cpp_fused_gelu_mul_0"].digest
    header = '#include "/tmp/torchinductor_root/pq/cpq.h"'
    assert digest_of(header) == digest_of(header.replace("/tmp/torchinductor_root/pq/", "/other/folder/"))


def test_a_choice_among_kernels_is_a_kernel_and_other_kinds_are_told():
    text = TRITON_MODULE.replace(
        "class Runner", "multi_kernel_0 = async_compile.multi_kernel('multi_kernel_0', [triton_poi_fused_mul_0])\n\nclass Runner"
    )
    found = read(text.replace("            triton_poi_fused_mul_0.run(", "            multi_kernel_0.run("))
    assert told(found.kernels["multi_kernel_0"]) == told(found.kernels["triton_poi_fused_mul_0"])
    assert [one.kernel for one in found.launches.values()] == ["multi_kernel_0"] and not found.others
    assert read(text + "\ncuda_fused_0 = async_compile.cuda(r'', 'so')\n").others == ("cuda",)


def test_a_module_that_is_one_cpp_function_says_so():
    assert read("from torch._inductor.codecache import CppWrapperCodeCache\n").in_cpp
    assert not read(CPP_MODULE).in_cpp
