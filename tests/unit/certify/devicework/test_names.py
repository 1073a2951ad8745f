"""Kernel names in short: what tells kernels apart stays, what all of them carry goes; hostile names cost nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_core.certify.devicework.mangled import MAX_CHARS
from opguard_core.certify.devicework.names import SHORT_CHARS, short_name, told_apart, work_name
from tests.support import launch_rows as rows

WRAPPED = (
    "_ZN2at6native10gpu_kernelI18__nv_hdl_wrapper_tILb0ELb1ELb0E11__nv_dl_tagIPFvRNS_18TensorIteratorBaseEE"
    "XadL_ZNS0_17round_kernel_cudaES5_EE"
)


@pytest.mark.parametrize(
    ("mangled", "short"),
    [
        (rows.ADD, "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"),
        (rows.GELU, "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl::lambda(float)>"),
        (rows.TILE, rows.TILE),
        (rows.SPLIT_SUM, "splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>"),
        (rows.CUTLASS, "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_nn_align8_xx"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIfffEEjfLi4ELi4EEEEEvT1_",
         "reduce_kernel<512, 1, ReduceOp<float, MeanOps<float, float, float>, unsigned, float, 4, 4>>"),
        ("_ZN2at6native62_GLOBAL__N__01234567_12_FusedAdam_cu_0123456789abcdef_1234567825multi_tensor_apply_kernelINS0_18TensorListMetadataILi4EEEEEvT_",
         "multi_tensor_apply_kernel<TensorListMetadata<4>>"),
        (f"{WRAPPED}Lj4EEFffEJEEEEvS5_RKT_", "gpu_kernel<round_kernel_cuda::lambda(float)>"),
    ],
)  # fmt: skip
def test_the_usual_names_are_read(mangled, short):
    assert short_name(mangled) == short


def test_a_name_that_is_not_understood_keeps_what_is():
    assert short_name("_ZN3foo3barIXsr3bazE4typeEEvv") == "bar<...>"
    assert short_name("_Z") == "_Z"
    assert short_name("_ZN3foo") == "foo<...>"


def test_work_without_a_name_says_what_it_is():
    assert [work_name(kind, "") for kind in ("copy", "fill", "graph", "kernel")] == [
        "copy",
        "fill",
        "graph replay",
        "a kernel without a name",
    ]


def test_kernels_that_read_alike_are_told_apart():
    other = rows.ADD.replace("Lm3E", "Lm2E")
    names = told_apart([("kernel", rows.ADD), ("kernel", other), ("kernel", rows.TILE)])
    assert len(set(names.values())) == 3
    assert names["kernel", rows.TILE] == rows.TILE
    assert all(name.startswith(f"{short_name(rows.ADD)} #") for work, name in names.items() if work[1] != rows.TILE)


def test_long_arguments_are_cut_from_the_inside():
    nested = "N1a" + "".join(f"3p{at:02d}I" for at in range(30)) + "i" + "E" * 30 + "E"
    assert len(short_name(f"_ZN1a6kernelI{nested}EEvv")) <= SHORT_CHARS


def test_substitutions_cannot_make_a_short_name_grow_without_bound():
    doubling = "_Z1fI" + "".join(f"1aIS{'' if at == 0 else chr(47 + at)}_S{'' if at == 0 else chr(47 + at)}_E" for at in range(9)) + "Evv"
    assert len(short_name(doubling)) <= SHORT_CHARS
    assert len(short_name("_ZN" + "1a" * MAX_CHARS + "E")) <= SHORT_CHARS


@given(st.text(alphabet="_ZNSTILEXJKPRad0123456789vifb", max_size=60))
def test_no_name_is_an_error(text):
    assert len(short_name(f"_Z{text}")) <= SHORT_CHARS
