"""State as plain data: what `state_dict()` returns, to JSON plus bytes and back, without pickle.

A closed set of types, each coming back as itself: None, bool, int, float (bits kept), complex, str, bytes, list, tuple, dict
and OrderedDict (order and key types kept), set, frozenset, Counter, deque, dense tensors and parameters, numpy arrays and
scalars, torch dtypes, devices and sizes. Anything else is refused by the name of its place: writing it would need code.

Tensors that share memory still share it afterwards.
"""

from __future__ import annotations

import base64
import collections
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from opguard_core.errors import StateDamaged, StateUnsupported
from opguard_core.state.container import Entry

Node = Any
_ALIGNMENT = 64  # torch's allocator; kernels may choose their path by the alignment of what they read
# Source: safetensors format description. What it has no name for is stored as bytes.
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "size"}
_KEYS = (str, int, bool, float, type(None))


@dataclass
class _Shared:
    """One storage and every tensor of ours in it."""

    storage: torch.UntypedStorage
    nodes: list[dict[str, Any]] = field(default_factory=list)
    extents: list[tuple[int, int]] = field(default_factory=list)  # bytes


class Writer:
    """Turns values into nodes and collects their bytes."""

    def __init__(self) -> None:
        """Nothing collected."""
        self._shared: dict[tuple[Any, ...], _Shared] = {}

    def node(self, value: Any, path: str) -> Node:
        """The node of one value.

        Args:
            value: Of the closed set; tensors are kept as they are now only if nothing writes to them before `entries`.
            path: Where it stands, for messages and entry names.

        Raises:
            StateUnsupported: It, or something in it, is of another type.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"k": "float", "v": struct.pack("<d", value).hex()}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if kind is list:
            return [self.node(item, f"{path}.{index}") for index, item in enumerate(value)]
        if kind in (dict, collections.OrderedDict, collections.Counter):
            items = [[self._key(key, path), self.node(item, f"{path}.{key}")] for key, item in value.items()]
            return {"k": kind.__name__, "v": items}
        if kind in _SEQUENCES:
            members = sorted(value, key=repr) if kind in (set, frozenset) else value
            return {"k": _SEQUENCES[kind], "v": [self.node(item, f"{path}.{index}") for index, item in enumerate(members)]}
        if kind is collections.deque:
            return {"k": "deque", "n": value.maxlen, "v": [self.node(item, f"{path}.{index}") for index, item in enumerate(value)]}
        if kind is bytes:
            return {"k": "bytes", "v": base64.b85encode(bytes(value)).decode("ascii")}
        if kind is complex:
            return {"k": "complex", "v": struct.pack("<dd", value.real, value.imag).hex()}
        if kind is torch.dtype:
            return {"k": "dtype", "v": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"k": "device", "v": str(value)}
        return self._numpy(value, path)

    def _key(self, key: Any, path: str) -> Node:
        if type(key) not in _KEYS and not (type(key) is tuple and all(type(part) in _KEYS for part in key)):
            raise _unsupported(f"{path}, a key", key)
        return self.node(key, path)

    def _numpy(self, value: Any, path: str) -> Node:
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or type(value).__module__ != "numpy":
            raise _unsupported(path, value)
        array = numpy.array(value, order="C")
        if array.dtype.hasobject or array.dtype.names is not None:
            raise _unsupported(path, value)
        form = "array" if isinstance(value, numpy.ndarray) else "scalar"
        text = base64.b85encode(array.tobytes()).decode("ascii")
        return {"k": "numpy", "form": form, "dtype": array.dtype.str, "shape": list(array.shape), "v": text}

    def _tensor(self, value: torch.Tensor, path: str) -> Node:
        parameter = isinstance(value, torch.nn.Parameter)
        plain = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if not plain or value.is_nested or value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            raise _unsupported(path, value, f"a tensor of type {type(value).__name__}, layout {value.layout}, device {value.device}")
        if value.is_conj() or value.is_neg():
            value = value.detach().resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        begin = value.storage_offset() * value.element_size()
        reach = sum(stride * (size - 1) for size, stride in zip(value.shape, value.stride(), strict=True)) + 1 if value.numel() else 0
        node = {
            "k": "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "device": str(value.device),
            "parameter": parameter,
            "grad": bool(value.requires_grad and value.is_leaf),
            "begin": begin,
            "at": path,
        }
        key = (str(storage.device), storage.data_ptr(), storage.nbytes()) if storage.nbytes() else (path,)
        shared = self._shared.setdefault(key, _Shared(storage))
        shared.nodes.append(node)
        shared.extents.append((begin, begin + reach * value.element_size()))
        return node

    def entries(self) -> list[Entry]:
        """The bytes of all tensors met so far; their nodes are completed. Memory that no tensor reaches is left out."""
        found, names = [], set()
        for shared in self._shared.values():
            first = min(begin for begin, _ in shared.extents) // _ALIGNMENT * _ALIGNMENT
            last = max(end for _, end in shared.extents)
            name = base = shared.nodes[0]["at"]
            for number in range(2, 1 << 30):
                if name not in names:
                    break
                name = f"{base}#{number}"
            names.add(name)
            dtype, shape = _shown(shared, first, max(last - first, 0))
            storage = shared.storage if shared.storage.device.type == "cpu" else shared.storage.cpu()
            for node in shared.nodes:
                node["at"], node["begin"] = name, node["begin"] - first
            found.append(Entry(name, dtype, shape, storage, first, max(last - first, 0)))
        return found


def _shown(shared: _Shared, first: int, nbytes: int) -> tuple[str, tuple[int, ...]]:
    """How a safetensors reader sees an entry: as the tensor it is, or as bytes where several lie in it."""
    node = shared.nodes[0]
    alike = all(
        (other["dtype"], other["shape"], other["stride"], other["begin"]) == (node["dtype"], node["shape"], node["stride"], node["begin"])
        for other in shared.nodes
    )
    name = _NAMES.get(node["dtype"])
    dense, expected = True, 1
    for size, stride in zip(reversed(node["shape"]), reversed(node["stride"]), strict=True):
        dense = dense and (size == 1 or stride == expected)
        expected *= size
    if alike and dense and name and node["begin"] == first and nbytes == expected * getattr(torch, node["dtype"]).itemsize:
        return name, tuple(node["shape"])
    return "U8", (nbytes,)


class Reader:
    """Turns nodes back into values."""

    def __init__(self, storages: dict[str, torch.UntypedStorage]) -> None:
        """Take the bytes by entry name."""
        self._storages = storages

    def value(self, node: Node) -> Any:
        """The value of a node, as `Writer.node` took it; tensors on the CPU.

        Raises:
            StateDamaged: It is no node of ours.
        """
        try:
            return self._value(node)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
            raise StateDamaged(f"The snapshot holds a value that cannot be read: {type(error).__name__}: {error}.") from error

    def _value(self, node: Node) -> Any:
        if not isinstance(node, (dict, list)):
            return node
        if isinstance(node, list):
            return [self._value(item) for item in node]
        kind = node["k"]
        if kind == "tensor":
            return self._tensor(node)
        if kind == "float":
            return struct.unpack("<d", bytes.fromhex(node["v"]))[0]
        if kind in ("dict", "OrderedDict"):
            items = [(self._value(key), self._value(item)) for key, item in node["v"]]
            return dict(items) if kind == "dict" else collections.OrderedDict(items)
        if kind == "Counter":
            return collections.Counter({self._value(key): self._value(item) for key, item in node["v"]})
        if kind == "bytes":
            return base64.b85decode(node["v"])
        if kind == "complex":
            return complex(*struct.unpack("<dd", bytes.fromhex(node["v"])))
        if kind == "dtype":
            return getattr(torch, node["v"])
        if kind == "device":
            return torch.device(node["v"])
        if kind == "numpy":
            return _array(node)
        made = [self._value(item) for item in node["v"]]
        if kind == "deque":
            return collections.deque(made, node["n"])
        return {name: build for build, name in _SEQUENCES.items()}[kind](made)

    def _tensor(self, node: dict[str, Any]) -> torch.Tensor:
        dtype = getattr(torch, node["dtype"])
        offset, rest = divmod(node["begin"], dtype.itemsize)
        if rest or offset < 0:
            raise ValueError("a tensor lies between two elements")
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(self._storages[node["at"]], offset, node["shape"], node["stride"])
        return torch.nn.Parameter(tensor, requires_grad=node["grad"]) if node["parameter"] else tensor.requires_grad_(node["grad"])


def _array(node: dict[str, Any]) -> Any:
    import numpy

    array = numpy.frombuffer(base64.b85decode(node["v"]), dtype=numpy.dtype(node["dtype"])).reshape(node["shape"]).copy()
    return array if node["form"] == "array" else array[()]


def _unsupported(path: str, value: Any, what: str = "") -> StateUnsupported:
    return StateUnsupported(f"{path} is {what or f'a {type(value).__module__}.{type(value).__qualname__}'}, which a snapshot cannot hold.")
