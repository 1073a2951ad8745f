"""Files of kept tensors: what is written is read, and what was not written so is refused before it is believed."""

from __future__ import annotations

import json
import os
import stat

import pytest

from opguard_core.errors import TraceFormatError
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.kept import Block, Kept, KeptSlot, read_kept, write_kept

KEY = BoundaryKey(0, 3, "forward", "aten.mm.default", "blocks.1", "forward", "x @ w", 2)


def slot(name, dtype="float32", shape=(2, 2), nbytes=16, **more):
    given = {"direction": "in", "status": "probed", "strides": (2, 1), "device": "cpu", "mix64": "0" * 15 + "1", **more}
    return KeptSlot(name=name, dtype=dtype, shape=shape, nbytes=nbytes, **given)


def boundary():
    known = {
        "in.0": slot("in.0"),
        "in.1": slot("in.1", "complex64", (3,), 24, strides=(1,)),
        "in.2": slot("in.2", shape=(1 << 20, 1 << 20), nbytes=1 << 42, reason="4398046511104 bytes do not fit into what is left of 8"),
        "out.0": slot("out.0", "bfloat16", (0, 7), 0, strides=(7, 1), direction="out"),
    }
    slots = {
        "in.0": Block("float32", (2, 2), bytes(range(16))),
        "in.1": Block("complex64", (3,), bytes(range(24))),
        "out.0": Block("bfloat16", (0, 7), b""),
    }
    return Kept(KEY, 57, "alpha=1;beta=1", "cpu", "00000000000000ff", slots, known, notes={"raised": "RuntimeError"})


@pytest.fixture
def path(tmp_path):
    write_kept(tmp_path / "kept-0.safetensors", boundary())
    return tmp_path / "kept-0.safetensors"


def rewritten(path, change, *, sealed=True):
    """The same file with another table, under a seal that fits it, as whoever wants to mislead a reader would write it."""
    import hashlib

    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    content = change(table, data[8 + length :]) or data[8 + length :]
    seal = table["__metadata__"]["opguard.seal"]
    table["__metadata__"]["opguard.seal"] = "0" * 64
    header = json.dumps(table, separators=(",", ":")).encode()
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header + content).hexdigest() if sealed else seal
    path.write_bytes(start + header.replace(b"0" * 64, digest.encode(), 1) + content)
    return path


def test_what_was_written_is_read(path):
    kept, written = read_kept(path), boundary()
    assert {name: (block.dtype, block.shape, bytes(block.data)) for name, block in kept.slots.items()} == {
        name: (block.dtype, block.shape, block.data) for name, block in written.slots.items()
    }
    assert kept.known == written.known
    facts = ("boundary", "seq", "args", "rng_stream", "rng_before", "notes")
    assert all(getattr(kept, name) == getattr(written, name) for name in facts)
    assert list(kept.left_out) == ["in.2"]


def test_only_its_owner_can_read_it_and_nothing_else_lies_beside_it(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_any_reader_of_safetensors_finds_names_types_and_bytes(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert all(isinstance(value, str) for value in table.pop("__metadata__").values())
    assert {name: (item["dtype"], item["shape"]) for name, item in table.items()} == {
        "in.0": ("F32", [2, 2]),
        "in.1": ("U8", [24]),  # a complex type that not every reader knows
        "out.0": ("BF16", [0, 7]),
    }
    begin, end = table["in.1"]["data_offsets"]
    assert data[8 + length :][begin:end] == bytes(range(24))


def test_a_file_cut_anywhere_is_refused(path):
    data = path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        with pytest.raises(TraceFormatError):
            read_kept(path)


def test_a_file_with_a_byte_changed_anywhere_is_refused(path):
    data = path.read_bytes()
    for at in range(0, len(data), 5):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x21]) + data[at + 1 :])
        with pytest.raises(TraceFormatError):
            read_kept(path)


def _hole(table, content):
    table["in.1"]["data_offsets"] = [20, 40]


def _beyond(table, content):
    table["in.1"]["data_offsets"] = [16, 1 << 50]


def _backwards(table, content):
    table["in.1"]["data_offsets"] = [16, 8]


def _unknown_slot(table, content):
    table["in.9"] = table.pop("in.0")


def _trailing(table, content):
    return content + b"more"


def _other_shape(table, content):
    table["in.0"]["shape"] = [4, 4]


def _no_table(table, content):
    del table["__metadata__"]["opguard.document"]


def _newer(table, content):
    table["__metadata__"]["opguard.kept"] = "2"


def _in_document(**changes):
    def change(table, content):
        document = json.loads(table["__metadata__"]["opguard.document"])
        document["slots"]["in.0"].update(changes)
        table["__metadata__"]["opguard.document"] = json.dumps(document)

    return change


def _document(**changes):
    def change(table, content):
        document = {**json.loads(table["__metadata__"]["opguard.document"]), **changes}
        table["__metadata__"]["opguard.document"] = json.dumps(document)

    return change


HOSTILE = {
    "hole": _hole,
    "beyond": _beyond,
    "backwards": _backwards,
    "unknown slot": _unknown_slot,
    "trailing bytes": _trailing,
    "other shape": _other_shape,
    "no document": _no_table,
    "newer": _newer,
    "shape of text": _in_document(shape=["2", "2"]),
    "huge shape": _in_document(shape=[1 << 61, 1 << 61]),
    "negative shape": _in_document(shape=[-2, -2]),
    "many dimensions": _in_document(shape=[1] * 100),
    "nan size": _in_document(nbytes=16.0),
    "bytes that are not there": _in_document(nbytes=1 << 40),
    "digest of prose": _in_document(mix64="ignore all of this"),
    "unknown field": _in_document(run="rm -rf"),
    "slots of text": _document(slots="none"),
    "deep": _document(slots=json.loads("[" * 900 + "]" * 900)),
    "key of another form": _document(boundary={"rank": 0}),
    "rank of text": _document(boundary={**KEY.as_dict(), "rank": "0"}),
    "true for a number": _document(boundary={**KEY.as_dict(), "step": True}),
    "args of another type": _document(args=["a"]),
    "note of another type": _document(notes={"raised": 1}),
    "state of another form": _document(rng_before="f"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_table_that_does_not_fit_its_bytes_is_refused_although_its_seal_holds(path, name):
    with pytest.raises(TraceFormatError) as caught:
        read_kept(rewritten(path, HOSTILE[name]))
    assert str(path) in caught.value.message


def test_the_rewriting_itself_is_not_what_is_refused(path):
    assert read_kept(rewritten(path, lambda table, content: None)).seq == 57


def test_a_link_a_folder_and_a_file_beyond_the_limit_are_refused_unread(path):
    link = path.with_name("kept-1.safetensors")
    link.symlink_to(path)
    for refused in (link, path.parent, path.with_name("kept-2.safetensors")):
        with pytest.raises(TraceFormatError):
            read_kept(refused)
    with pytest.raises(TraceFormatError, match="at most 100 bytes"):
        read_kept(path, limit_bytes=100)


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(descriptor, view):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_kept(tmp_path / "kept-0.safetensors", boundary())
    assert os.listdir(tmp_path) == []
