"""Operators that mode ``trusted`` does not look into, each with its reason.

High-confidence primitives: deterministic for equal inputs on one machine, exercised by every training, and followed by
operators that are observed. Their events are recorded by shape; a difference they cause shows at the next observed one, or in
the state at the end of the step, which every mode digests.

Left out on purpose, for what they are worth looking at:
    attention             its backward adds with atomics unless determinism was asked for, and its backends differ in every bit
    norms, softmax, losses  reductions along rows, which people write, fuse and cast around; few bytes
    sums, means           the order of accumulation is theirs; gradients of biases are made by them
    embedding, index, scatter, gather and their backward   atomics, and indices that may be wrong
    dropout, random       they consume generators
    fused optimizers      one operator writes all parameters; what it reads is carried from the state and what it writes is digested for the
                          state anyway, so looking costs nothing more, and a gradient that changed before it is seen there
"""

from __future__ import annotations

_GEMM = (
    "vendor matrix product; deterministic for equal inputs and shapes (on a GPU: on one stream, or with CUBLAS_WORKSPACE_CONFIG set), "
    "and most of a step's bytes"
)
_ELEMENTWISE = "one output element from one element of each input; no order of accumulation"
_LISTS = "elementwise over a list of tensors, in one launch; the state at the end of the step has what it wrote"
_COPY = "moves or converts bytes; no arithmetic"
_CONSTANT = "writes one constant"

_ELEMENTWISE_NAMES = (
    "abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or ceil clamp clamp_max clamp_min cos div elu elu_backward eq erf exp "
    "expm1 floor ge gelu gelu_backward gt hardswish hardswish_backward hardtanh hardtanh_backward isinf isnan le leaky_relu "
    "leaky_relu_backward lerp log log1p logical_and logical_not logical_or lt masked_fill maximum minimum mish mish_backward mul "
    "ne neg pow reciprocal relu round rsqrt rsub sgn sigmoid sigmoid_backward sign silu silu_backward sin softplus "
    "softplus_backward sqrt sub tanh tanh_backward threshold threshold_backward tril triu where"
).split()
_IN_PLACE = (
    "abs_ add_ addcdiv_ addcmul_ clamp_ clamp_max_ clamp_min_ div_ exp_ lerp_ masked_fill_ mul_ neg_ pow_ reciprocal_ relu_ rsqrt_ "
    "sigmoid_ silu_ sqrt_ sub_ tanh_ tril_ triu_"
).split()
_LIST_NAMES = (
    "_foreach_abs _foreach_add _foreach_add_ _foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ "
    "_foreach_clamp_max_ _foreach_clamp_min_ _foreach_div _foreach_div_ _foreach_lerp _foreach_lerp_ _foreach_maximum "
    "_foreach_maximum_ _foreach_mul _foreach_mul_ _foreach_neg _foreach_neg_ _foreach_pow _foreach_reciprocal _foreach_reciprocal_ "
    "_foreach_sqrt _foreach_sqrt_ _foreach_sub _foreach_sub_"
).split()
_COPY_NAMES = (
    "_foreach_copy_ _to_copy cat clone constant_pad_nd copy_ diagonal_backward expand_copy flip permute_copy repeat "
    "select_backward slice_backward slice_scatter stack transpose_copy view_copy"
).split()
_CONSTANT_NAMES = "_foreach_zero_ fill_ full full_like new_full new_ones new_zeros ones ones_like zero_ zeros zeros_like".split()


def _aten(names: tuple[str, ...] | list[str], reason: str) -> dict[str, str]:
    return {f"aten::{name}": reason for name in names}


TRUSTED: dict[str, str] = {
    **_aten(["_scaled_mm", "addmm", "addmm_", "addmv", "baddbmm", "baddbmm_", "bmm", "linear", "mm", "mv"], _GEMM),
    **_aten([*_ELEMENTWISE_NAMES, *_IN_PLACE], _ELEMENTWISE),
    **_aten(_LIST_NAMES, _LISTS),
    **_aten(_COPY_NAMES, _COPY),
    **_aten(_CONSTANT_NAMES, _CONSTANT),
}
