"""One kept boundary of both sides as a program of one file and its data: `repro.py` and `repro.safetensors`.

The program is always the same text: everything that a run controls (operators, arguments, shapes) is data in the second file, read by
the program through closed sets. What cannot be rebuilt so is refused, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.errors import ReproRefused
from opguard_core.evidence.repro.arguments import parse_arguments
from opguard_core.ids import SIDES
from opguard_core.trace.files import write_atomic
from opguard_core.trace.kept import Block, Kept, KeptSlot

SCRIPT, DATA = "repro.py", "repro.safetensors"
FORMAT = 1
TEMPLATE = Path(__file__).with_name("script.py.txt")
NAMESPACES = ("aten", "prims")
_OPERATOR = re.compile(r"(?:aten|prims)\.[A-Za-z_][A-Za-z0-9_]{0,99}\.[A-Za-z_][A-Za-z0-9_]{0,99}")
_SLOT = re.compile(r"(in|kw|out|mut)\.[A-Za-z0-9_]{1,64}(\.\d{1,6}){0,2}")
_DEVICE = re.compile(r"(cpu|cuda|xpu|mps)(:\d{1,3})?")
_RNG = "rng"
_NOT_CONTENT = ("uninitialised", "metadata")
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# Facts of the contract that change what an operator computes, and the type that each must have to be handed on.
_ENVIRONMENT: dict[str, type] = {
    "threads.intraop": int,
    "flags.deterministic_algorithms": bool,
    "flags.float32_matmul_precision": str,
    "flags.mkldnn.enabled": bool,
    "flags.cudnn.enabled": bool,
    "flags.cudnn.benchmark": bool,
    "flags.cudnn.deterministic": bool,
    "flags.cudnn.allow_tf32": bool,
    "torch.version": str,
    "cpu.capability": str,
}
_MAX_TEXT = 60


@dataclass(frozen=True)
class Captured:
    """One side of what is rebuilt.

    Attributes:
        kept: The boundary.
        cited: Its evidence id.
        contract: Facts of the run that kept it.
    """

    kept: Kept
    cited: str
    contract: Mapping[str, Any]


def write_repro(folder: Path, sides: tuple[Captured | None, Captured | None]) -> None:
    """Write both files.

    Args:
        folder: Where to; must exist.
        sides: Reference and suspect; None where a side has no such boundary.

    Raises:
        ReproRefused: A side cannot be rebuilt; nothing is written.
        OSError: A file cannot be written.
    """
    present = [side for side in sides if side is not None]
    if not present:
        raise ReproRefused("Neither side kept this boundary.")
    blocks: dict[str, Block] = {}
    document = {
        "format": FORMAT,
        "sides": {name: _side(name, side, blocks) for name, side in zip(SIDES, sides, strict=True) if side is not None},
        "environment": {name: _environment(side.contract) for name, side in zip(SIDES, sides, strict=True) if side is not None},
    }
    script = TEMPLATE.read_bytes()
    write_atomic(folder / DATA, _safetensors(document, blocks))
    write_atomic(folder / SCRIPT, script)


def _side(name: str, side: Captured, blocks: dict[str, Block]) -> dict[str, Any]:
    """One side as data; its tensors go into ``blocks``, equal ones once."""
    kept = side.kept
    operator = kept.boundary.operator
    _require_rebuildable(name, kept)
    try:
        arguments = parse_arguments(kept.args)
    except ValueError as error:
        raise ReproRefused(f"{_operator(operator)} of the {name} cannot be rebuilt: {error}.") from error
    inputs, results = {}, {}
    for slot, known in kept.known.items():
        if slot == _RNG:
            continue
        if not _SLOT.fullmatch(slot):
            raise ReproRefused(f"{_operator(operator)} of the {name} works on a tensor made of several parts, which cannot be rebuilt.")
        facts = _tensor(name, known, kept.slots.get(slot), blocks)
        if slot.startswith(("in.", "kw.")):
            if facts["data"] is None and known.status not in _NOT_CONTENT:
                raise ReproRefused(f"{slot} of the {name} was not kept: {known.reason}.")
            inputs[slot] = facts
        elif facts["data"] is not None:
            results[slot] = facts
    if not results:
        raise ReproRefused(f"{_operator(operator)} of the {name} gave no tensor that was kept: there are no bits to reproduce.")
    return {
        "operator": operator,
        "arguments": arguments,
        "inputs": inputs,
        "results": results,
        "rng": _generator(name, kept, blocks),
        "evidence": side.cited,
    }


def _require_rebuildable(name: str, kept: Kept) -> None:
    """Refuse operators whose inputs are not all tensors and literals."""
    operator = kept.boundary.operator
    namespace = operator.partition(".")[0]
    if namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
        raise ReproRefused(f"{_operator(operator)} of the {name} is a collective: what it gives depends on other ranks.")
    if namespace not in NAMESPACES or not _OPERATOR.fullmatch(operator):
        raise ReproRefused(f"{_operator(operator)} of the {name} is no operator of torch itself; torch alone does not have it.")
    if kept.boundary.phase == "collective":
        raise ReproRefused(f"{_operator(operator)} of the {name} belongs to a collective: what it gives depends on other ranks.")
    if "raised" in kept.notes:
        raise ReproRefused(f"{_operator(operator)} of the {name} did not return.")
    if "transplanted" in kept.notes:
        raise ReproRefused(f"Results of {_operator(operator)} of the {name} were overwritten by a transplant.")
    if kept.rng_stream and _RNG not in kept.slots:
        raise ReproRefused(f"{_operator(operator)} of the {name} draws from a generator whose state was not kept.")


def _operator(text: str) -> str:
    """An operator's name for a message; one that is none is not repeated."""
    return text if re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){1,2}", text[:200]) else "An operator"


def _tensor(name: str, known: KeptSlot, block: Block | None, blocks: dict[str, Block]) -> dict[str, Any]:
    device = known.device if _DEVICE.fullmatch(known.device) else "cpu"
    return {
        "data": None if block is None else _stored(f"{name}.{known.name}", block, blocks),
        "dtype": known.dtype,
        "shape": list(known.shape),
        "strides": list(known.strides) if len(known.strides) == len(known.shape) else None,
        "shift": known.shift,
        "device": device,
    }


def _generator(name: str, kept: Kept, blocks: dict[str, Block]) -> dict[str, Any] | None:
    state = kept.slots.get(_RNG) if kept.rng_stream else None
    if state is None:
        return None
    device = kept.known[_RNG].device
    return {"data": _stored(f"{name}.{_RNG}", state, blocks), "device": device if _DEVICE.fullmatch(device) else "cpu"}


def _stored(name: str, block: Block, blocks: dict[str, Block]) -> str:
    """The name under which a block lies in the file; one of equal content that is there already is used."""
    for other, there in blocks.items():
        if (there.dtype, there.shape, len(there.data)) == (block.dtype, block.shape, len(block.data)) and bytes(there.data) == bytes(
            block.data
        ):
            return other
    blocks[name] = block
    return name


def _environment(contract: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that change arithmetic, each only in the type that it should have."""
    found = {name: contract[name] for name, kind in _ENVIRONMENT.items() if type(contract.get(name)) is kind}
    return {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in found.items()}


def _safetensors(document: dict[str, Any], blocks: Mapping[str, Block]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"opguard.repro": json.dumps(document, ensure_ascii=True, separators=(",", ":"))}}
    offset = 0
    for name, block in blocks.items():
        known = _NAMES.get(block.dtype)
        size = len(block.data)
        shape = list(block.shape) if known else [size]
        table[name] = {"dtype": known or "U8", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(table, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, *(block.data for block in blocks.values())))
