"""Operators that mode ``trusted`` does not look into, each with its reason.

High-confidence primitives: deterministic for equal inputs on one machine, exercised by every training, and followed by
operators that are observed. Their events are recorded by shape; a difference they cause shows at the next observed one.
"""

from __future__ import annotations

_GEMM = "vendor matrix product; deterministic for equal inputs and shapes, and most of a step's bytes"
_ELEMENTWISE = "one output element from one element of each input; no order of accumulation"
_COPY = "moves or converts bytes; no arithmetic"

TRUSTED: dict[str, str] = {
    **dict.fromkeys(("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::linear"), _GEMM),
    **dict.fromkeys(
        (
            "aten::abs",
            "aten::add",
            "aten::add_",
            "aten::addcdiv_",
            "aten::addcmul_",
            "aten::cos",
            "aten::div",
            "aten::div_",
            "aten::exp",
            "aten::gelu",
            "aten::gelu_backward",
            "aten::lerp_",
            "aten::masked_fill",
            "aten::mul",
            "aten::mul_",
            "aten::neg",
            "aten::pow",
            "aten::reciprocal",
            "aten::relu",
            "aten::rsqrt",
            "aten::sigmoid",
            "aten::silu",
            "aten::silu_backward",
            "aten::sin",
            "aten::sqrt",
            "aten::sub",
            "aten::sub_",
            "aten::tanh",
            "aten::tanh_backward",
            "aten::threshold_backward",
            "aten::where",
        ),
        _ELEMENTWISE,
    ),
    **dict.fromkeys(("aten::_to_copy", "aten::cat", "aten::clone", "aten::copy_", "aten::stack"), _COPY),
}
