"""Canonical text of an operator's non-tensor arguments.

Only a closed set of values has a text; anything else is its type name. `repr` of a user's object is never called: it runs
user code, an address in it would be a false difference, and some (a storage's) print all their bytes.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

SHORT_TEXT = 200

# Where a tensor lives or how it is laid out, not what is computed; the slots carry what matters of it.
DROPPED_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "generator"})


# Some bindings hand a dtype over as the number of its C++ enum.
_DTYPE_ARGUMENTS = frozenset({"dtype", "input_dtype", "out_dtype"})
# Source: c10/core/ScalarType.h, order of the enum.
_DTYPES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32 bfloat16 "
    "quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz "
    "uint16 uint32 uint64"
).split()


# Source: torch/csrc/distributed/c10d/Types.hpp, ReduceOp::RedOpType.
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


def argument_text(name: str, value: object) -> str:
    """Write one argument as "name=value", as it stands in an event's ``args``."""
    if type(value) is int and name in _DTYPE_ARGUMENTS:
        return f"{name}={_DTYPES[value] if 0 <= value < len(_DTYPES) else f'dtype#{value}'}"
    return f"{name}={canonical(value)}"


def canonical(value: object) -> str:
    """Text of one argument; equal values of one type give equal text on any machine."""
    kind = type(value)
    if value is None or kind is bool:
        return "None" if value is None else ("True" if value else "False")
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if kind.__name__ == "ScriptObject":
        return _script_object(value)
    return kind.__name__


def _float(value: Any) -> str:
    return float.hex(value)


def _complex(value: Any) -> str:
    return f"complex({value.real.hex()},{value.imag.hex()})"


def _text(value: Any) -> str:
    return repr(value) if len(value) <= SHORT_TEXT else f"str[{len(value)}]"


def _sequence(value: Any) -> str:
    return f"[{','.join([canonical(item) for item in value])}]"


def _mapping(value: Any) -> str:
    return "{" + ",".join([f"{canonical(key)}:{canonical(item)}" for key, item in value.items()]) + "}"


def _torch_name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _tensor(value: Any) -> str:
    return "Tensor"


_WRITERS: dict[type, Any] = {
    int: str,
    float: _float,
    complex: _complex,
    str: _text,
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    torch.Size: _sequence,
    torch.dtype: _torch_name,
    torch.device: str,
    torch.layout: _torch_name,
    torch.memory_format: _torch_name,
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
}


def _script_object(value: Any) -> str:
    """Collectives carry their reduction and group as boxed C++ objects; the reduction changes the arithmetic."""
    name = str(value._type()).rpartition(".")[2]
    if name == "ReduceOp":
        number = int(value.op())
        return _REDUCTIONS[number] if 0 <= number < len(_REDUCTIONS) else f"ReduceOp#{number}"
    if name == "ProcessGroup":
        return f"ProcessGroup(size={torch._C._distributed_c10d.ProcessGroup.unbox(value).size()})"
    return name
