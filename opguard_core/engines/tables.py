"""What operator schemas do not say: tables of operators with a reason each.

Everything here is knowledge about torch that its schemas lack or get wrong. Names are schema names without overload
(``aten::copy_``), so one line covers an operator's overloads.
"""

from __future__ import annotations

from typing import NamedTuple

# `record_function` bookkeeping; runs inside every optimizer step and does no work on tensors.
DROPPED_NAMESPACES = frozenset({"profiler", "prim", "opguard"})

COLLECTIVE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"})

# The program asks for a result here; nothing is sent, and the tensor may not be looked at before the call returns.
WAITS = frozenset({"_c10d_functional::wait_tensor"})

# Return memory nobody has written: recorded by shape, never by content, until something writes it.
UNINITIALISED_RESULTS = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_permuted",
        "aten::empty_quantized",
        "aten::empty_strided",
        "aten::_empty_affine_quantized",
        "aten::_empty_per_channel_affine_quantized",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)

# Take a tensor for its shape and dtype only.
SHAPE_ONLY = frozenset(
    {
        "aten::full_like",
        "aten::new_full",
        "aten::new_ones",
        "aten::new_zeros",
        "aten::ones_like",
        "aten::rand_like",
        "aten::randint_like",
        "aten::randn_like",
        "aten::zeros_like",
    }
)

# Results whose bytes the kernel leaves undefined (workspace for the backward), by position.
GARBAGE_RESULTS = {
    "fsdp::all_gather_copy_in": frozenset({1}),  # the argument itself, of which only this rank's part was written
    "aten::mkldnn_rnn_layer": frozenset({3}),  # oneDNN workspace; differs between any two runs
    "aten::_cudnn_rnn": frozenset({3}),  # reserve space
    "aten::miopen_rnn": frozenset({3}),  # reserve space
    "aten::cudnn_batch_norm": frozenset({3}),  # reserve space
    "aten::_batch_norm_with_update": frozenset({3}),  # reserve space
    "aten::_batch_norm_no_update": frozenset({3}),  # reserve space
}

# The listed arguments (first tensor argument otherwise) are written without being read: their old bytes are no input.
OVERWRITES = frozenset(
    {
        "aten::_foreach_copy_",
        "aten::_foreach_zero_",
        "aten::bernoulli_",
        "aten::cauchy_",
        "aten::copy_",
        "aten::exponential_",
        "aten::fill_",
        "aten::geometric_",
        "aten::log_normal_",
        "aten::normal_",
        "aten::random_",
        "aten::uniform_",
        "aten::zero_",
        "_c10d_functional::all_gather_into_tensor_out",
        "_c10d_functional::reduce_scatter_tensor_out",
    }
)

# Values leave for Python here. Every other operator that returns no tensor and writes none only looks at metadata.
READS = frozenset({"aten::_local_scalar_dense", "aten::allclose", "aten::equal", "aten::is_nonzero", "aten::item"})

# Return no tensor, yet do their work on content (they raise or print), so they are boundaries.
CHECKS = frozenset({"aten::_assert_async", "aten::_functional_assert_async"})

# Rewire a tensor to other memory, or change only its shape: nothing is computed.
METADATA = frozenset(
    {
        "aten::_unsafe_view",  # a view whose schema does not say so
        "aten::lift",
        "aten::record_stream",
        "aten::rename_",
        "aten::requires_grad_",
        "aten::resize_",
        "aten::resize_as_",
        "aten::resize_as_sparse_",
        "aten::retain_grad",
        "aten::set_",
        "aten::set_data",
        "aten::sparse_resize_",
        "aten::sparse_resize_and_clear_",
        "_c10d_functional::_wrap_tensor_autograd",  # the result is still on its way here
        "aten::_assert_scalar",
        "aten::_assert_tensor_metadata",
        "aten::_functional_assert_scalar",
        "aten::_fused_sdp_choice",
        "aten::_backward",
        "aten::_pin_memory",
        "aten::pin_memory",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)

# May leave part of a storage unwritten (the part it grew by).
RESIZES = frozenset({"aten::resize_", "aten::resize_as_", "aten::resize"})


class Write(NamedTuple):
    """Arguments that an operator writes although its schema does not say so.

    Attributes:
        arguments: Names of the written arguments.
        only: Written but never read.
        when: Name of a bool argument that must be true for the write to happen, or "".
    """

    arguments: tuple[str, ...]
    only: bool = False
    when: str = ""


# Source: `torch.ops.<name>.default._schema` in torch 2.13 against the kernels' documentation; and against what they do on the host, over
# torch's operator database, its modules and optimizers (569 operators, forward and backward). Not here: the backward of a recurrent layer
# works in the memory that its forward left it, which is never compared (`GARBAGE_RESULTS`) and so never carried, either.
UNDECLARED_WRITES = {
    "aten::batch_norm_update_stats": Write(("running_mean", "running_var")),
    "aten::_cudnn_rnn": Write(("dropout_state",), when="train"),  # its generator counts on
    "aten::miopen_rnn": Write(("dropout_state",), when="train"),
    "aten::native_batch_norm": Write(("running_mean", "running_var"), when="training"),
    "aten::cudnn_batch_norm": Write(("running_mean", "running_var"), when="training"),
    "aten::miopen_batch_norm": Write(("running_mean", "running_var"), when="training"),
    "aten::batch_norm_gather_stats": Write(("running_mean", "running_var")),
    "aten::batch_norm_gather_stats_with_counts": Write(("running_mean", "running_var")),
    "c10d::allreduce_": Write(("tensors",)),
    "c10d::allreduce_coalesced_": Write(("tensors",)),
    "c10d::broadcast_": Write(("tensors",)),
    "c10d::reduce_": Write(("tensors",)),
    "c10d::allgather_": Write(("output_tensors",), only=True),
    "c10d::allgather_coalesced_": Write(("output_lists",), only=True),
    "c10d::allgather_into_tensor_coalesced_": Write(("outputs",), only=True),
    "c10d::_allgather_base_": Write(("output_tensor",), only=True),
    "c10d::reduce_scatter_": Write(("output_tensors",), only=True),
    "c10d::reduce_scatter_tensor_coalesced_": Write(("outputs",), only=True),
    "c10d::_reduce_scatter_base_": Write(("output_tensor",), only=True),
    "c10d::alltoall_": Write(("output_tensors",), only=True),
    "c10d::alltoall_base_": Write(("output",), only=True),
    "c10d::gather_": Write(("output_tensors",), only=True),
    "c10d::scatter_": Write(("output_tensors",), only=True),
    "c10d::recv_": Write(("tensors",), only=True),
    "c10d::recv_any_source_": Write(("tensors",), only=True),
}

# Backends whose own kernel for an operator goes before its composite formula.
SPECIAL_BACKENDS = (
    "NestedTensorCPU",
    "NestedTensorCUDA",
    "SparseCPU",
    "SparseCUDA",
    "SparseCsrCPU",
    "SparseCsrCUDA",
    "MkldnnCPU",
    "QuantizedCPU",
    "QuantizedCUDA",
)

# Backward formulas that torch computes another way while any dispatch mode is active (`isTensorSubclassLike`), with other
# last bits. Listed by autograd node, and by the operators that make such a node.
# Source: torch/csrc/autograd/FunctionsManual.cpp; measured over torch's operator database (4829 samples, forward and backward,
# with and without a mode that does nothing): no others differ.
NODES_CHANGED_BY_MODES = frozenset({"MaskedFillBackward1", "ProdBackward0", "ProdBackward1"})
MAKE_NODES_CHANGED_BY_MODES = frozenset({"aten::masked_fill", "aten::masked_fill_", "aten::prod"})
