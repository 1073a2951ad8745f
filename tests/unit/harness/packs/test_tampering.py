"""Whatever is done to a pack, nothing of it is used; what no pack has ever been is refused as well."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_harness.errors import PackDamaged
from opguard_harness.workspace.packs import checking
from opguard_harness.workspace.packs.checking import check
from opguard_harness.workspace.packs.listed import MANIFEST, is_name, read_manifest
from opguard_harness.workspace.packs.opening import open_pack
from opguard_harness.workspace.packs.writing import header, pack
from tests.support.packs import contents, forged, manifest_of, nothing_was_opened, small_pack
from tests.support.stored_case import StoredCase


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of some thousand bytes, on a machine where nothing was opened."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = small_pack(tmp_path / "small")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    return made.path


@pytest.fixture
def whole(made: StoredCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pack of a whole case, on a machine where nothing was opened."""
    pack(made.case.id, tmp_path / "whole.zip", sources=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    return tmp_path / "whole.zip"


def checks(data: bytes, path: Path, out: Path | None = None) -> bool:
    """Whether these bytes are a pack, everything in it read."""
    path.write_bytes(data)
    try:
        with path.open("rb") as file:
            found = check(file)
            if out is not None:
                found.take_out(out)
    except PackDamaged:
        return False
    return True


def refused(path: Path, match: str | None = None) -> None:
    """Opening it fails with the one error, and leaves nothing."""
    with pytest.raises(PackDamaged, match=match):
        open_pack(path)
    assert nothing_was_opened()


# -- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_no_byte_of_a_pack_can_be_another_one(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    assert checks(data, tmp_path / "x")
    for at in range(len(data)):
        for mask in (1 << at % 8, 0xFF):
            changed = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            assert not checks(changed, tmp_path / "x"), f"byte {at} of {len(data)} was changed by {mask:#x}"


@pytest.mark.full
def test_no_cut_and_no_addition_is_a_pack(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for size in range(len(data)):
        assert not checks(data[:size], tmp_path / "x")
    for at in (0, 30, len(data) // 2, len(data) - 22, len(data)):
        for more in (b"\0", b"PK", data, b"\0" * 70_000):
            assert not checks(data[:at] + more + data[at:], tmp_path / "x")


@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_damage_to_a_whole_pack_is_refused(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    original = whole.read_bytes()
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, len(changed) - 1))
        size = data.draw(st.integers(0, 200))
        changed[first : first + size] = data.draw(st.binary(max_size=200))
    assert checks(bytes(changed), tmp_path / "x") == (bytes(changed) == original)


@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=600))
def test_any_bytes_are_refused_with_the_one_error(tmp_path: Path, noise: bytes) -> None:
    assert not checks(noise, tmp_path / "x")
    assert not checks(b"PK\3\4" + noise + b"PK\5\6" + noise[:18].ljust(18, b"\0"), tmp_path / "x")


def test_a_file_that_is_no_file_is_refused_and_not_waited_for(small: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path, tmp_path / "absent", Path("/dev/zero")):
        refused(odd)


# -- entries that fit the zip and not the list -------------------------------------------------------------------------


def zipped(path: Path, entries: list[tuple[zipfile.ZipInfo, bytes]], comment: bytes = b"") -> Path:
    """A zip of these entries, whatever they are."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment
        for info, data in entries:
            with pytest.warns(UserWarning) if info.filename in archive.namelist() else _quiet(), archive.open(info, "w") as entry:
                entry.write(data)
    return path


def _quiet() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def entries_of(path: Path) -> list[tuple[zipfile.ZipInfo, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(header(info.filename, info.file_size), archive.read(info)) for info in archive.infolist()]


def with_info(change: Callable[[zipfile.ZipInfo], None]) -> Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]:
    """Change how the last entry is written."""

    def edit(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        change(entries[-1][0])

    return edit


def _set(name: str, value: Any) -> Callable[[zipfile.ZipInfo], None]:
    return lambda info: setattr(info, name, value)


EDITS: dict[str, Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]] = {
    "an extra file": lambda entries: entries.append((header("case/report.json", 2), b"{}")),
    "an extra file at the front": lambda entries: entries.insert(0, (header("case/report.json", 2), b"{}")),
    "one name twice": lambda entries: entries.append((entries[-1][0], b"other")),
    "the list twice": lambda entries: entries.append((header(MANIFEST, 2), b"{}")),
    "a missing file": lambda entries: entries.pop() and None,
    "another order": lambda entries: entries.reverse(),
    "no list": lambda entries: entries.pop(0) and None,
    "nothing": lambda entries: entries.clear(),
    "a path upwards": lambda entries: entries.append((header("../evil.json", 2), b"{}")),
    "an absolute path": lambda entries: entries.append((header("/tmp/evil.json", 2), b"{}")),
    "a folder": lambda entries: entries.append((header("case/", 0), b"")),
    "a longer file": lambda entries: entries.__setitem__(-1, (entries[-1][0], entries[-1][1] + b" ")),
    "another file of that size": lambda entries: entries.__setitem__(-1, (entries[-1][0], entries[-1][1][::-1])),
    "a link": with_info(_set("external_attr", (stat.S_IFLNK | 0o777) << 16)),
    "an executable": with_info(_set("external_attr", (stat.S_IFREG | 0o755) << 16)),
    "another system": with_info(_set("create_system", 0)),
    "compressed": with_info(_set("compress_type", zipfile.ZIP_DEFLATED)),
    "compressed otherwise": with_info(_set("compress_type", zipfile.ZIP_LZMA)),
    "another date": with_info(_set("date_time", (2020, 1, 1, 0, 0, 0))),
    "an extra field": with_info(_set("extra", struct.pack("<2H", 0x7075, 0))),
    "a comment": with_info(_set("comment", b"hello")),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_a_zip_that_is_not_what_its_list_says_is_refused(small: Path, tmp_path: Path, edit: Callable[..., None]) -> None:
    entries = entries_of(small)
    assert zipped(tmp_path / "same.zip", entries).read_bytes() == small.read_bytes()
    edit(entries)
    refused(zipped(tmp_path / "odd.zip", entries))


def test_a_comment_of_the_zip_and_a_bomb_are_refused(small: Path, tmp_path: Path) -> None:
    refused(zipped(tmp_path / "comment.zip", entries_of(small), comment=b"hello"))
    info = header("case/report.json", 50 << 20)
    info.compress_type = zipfile.ZIP_DEFLATED
    bomb = zipped(tmp_path / "bomb.zip", [*entries_of(small), (info, bytes(50 << 20))])
    assert bomb.stat().st_size < 1 << 20
    refused(bomb)


def test_a_directory_of_a_size_that_no_pack_has_is_not_read(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_MOST_DIRECTORY_BYTES", 100)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("it was opened"))
    refused(small, "as a pack is one")


def test_a_zip64_and_an_encrypted_entry_are_refused(small: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wide.zip", "w") as archive:
        for info, data in entries_of(small):
            with archive.open(info, "w", force_zip64=True) as entry:
                entry.write(data)
    refused(tmp_path / "wide.zip")
    data = bytearray(small.read_bytes())
    data[6] |= 1  # the first entry says it is encrypted
    (tmp_path / "locked.zip").write_bytes(data)
    refused(tmp_path / "locked.zip")


def test_other_writers_of_zips_make_no_pack(small: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for info, data in entries_of(small):
            archive.writestr(info.filename, data)
    (tmp_path / "other.zip").write_bytes(stream.getvalue())
    refused(tmp_path / "other.zip", "not written as a pack writes it")


# -- lists that fit their zip and are no list of a pack ----------------------------------------------------------------

NAMES = (
    "../evil.json",
    "runs/../../evil.json",
    "/etc/evil.json",
    "runs/a/../b.json",
    "runs//a.json",
    "runs/a/.hidden.json",
    "runs/a/b\\c.json",
    "runs/a/b\0.json",
    "runs/a/ b.json",
    "runs/a/\u202eb.json",
    "runs/a/train.py",
    "runs/a/sources.d/x.py",
    "runs/a/opened.json",
    "runs/a/lib.so",
    "runs/a.json",
    "case/case.json/x.json",
    "case/spec.json",
    "case/opened.json",
    "jobs/a/marks",
    "jobs/a/b/log.txt",
    "cases/a/case.json",
    "plans/a.json",
    "filters.json",
    "C:/a.json",
    "runs/" + "/".join("abcdefghij") + "/x.json",
    "runs/" + "a" * 200 + "/x.json",
    "",
    ".",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_pack_has_is_refused_whatever_else_fits(small: Path, tmp_path: Path, name: str) -> None:
    assert not is_name(name)
    document = manifest_of(small)
    document["files"] = sorted([*document["files"], {**document["files"][0], "name": name}], key=lambda item: item["name"])
    with pytest.raises(PackDamaged):
        read_manifest((json.dumps(document, indent=1) + "\n").encode("ascii"))
    if name.isascii() and name.isprintable() and name:
        refused(forged(small, tmp_path / "odd.zip", {name: b"{}"}))


def _edit(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(changed)


LISTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a newer format": _edit(format=2),
    "no format": lambda document: document.pop("format"),
    "a format that is nearly a number": _edit(format=True),
    "another kind": _edit(kind="something"),
    "a case that is none": _edit(case="../../x"),
    "another key": _edit(more=1),
    "files that are none": _edit(files=[1]),
    "no files": _edit(files=[]),
    "a file of another size": lambda document: document["files"][0].update(bytes=1),
    "a negative size": lambda document: document["files"][0].update(bytes=-1),
    "a size beyond all": lambda document: document["files"][0].update(bytes=1 << 80),
    "another digest": lambda document: document["files"][0].update(sha256="0" * 64),
    "a digest that is none": lambda document: document["files"][0].update(sha256="x"),
    "another order": lambda document: document["files"].reverse(),
    "one twice": lambda document: document["files"].insert(0, document["files"][0]),
    "a file too many": lambda document: document["files"].append({"name": "runs/z/x.json", "bytes": 0, "sha256": "0" * 64}),
    "traces of nothing": _edit(traces={"x": {"reference": "../..", "suspect": "../.."}}),
    "traces of one side": _edit(traces={"x": {"reference": "runs/x/trace"}}),
    "a comparison that is not there": _edit(traces={"x": {"reference": "runs/x/trace", "suspect": "runs/x/trace"}}),
    "left out without a reason": _edit(left_out=[{"what": "x"}]),
    "left out without end": _edit(left_out=[{"what": "x", "why": "y"}] * 600),
    "another case inside": _edit(case="case-000000000000"),
}


@pytest.mark.parametrize("edit", LISTS.values(), ids=LISTS.keys())
def test_a_list_that_is_none_is_refused(small: Path, tmp_path: Path, edit: Callable[..., None]) -> None:
    assert forged(small, tmp_path / "same.zip").read_bytes() == small.read_bytes()
    refused(forged(small, tmp_path / "odd.zip", listed=edit))


def test_a_list_that_is_no_json_or_says_a_key_twice_is_refused() -> None:
    for data in (b"", b"[]", b"{", b"null", b"\xff", b"[" * 100_000, b'{"format": 1, "format": 1}', b'{"kind": "opguard-case"}'):
        with pytest.raises(PackDamaged):
            read_manifest(data)


def test_names_that_some_file_systems_take_for_one_are_refused(small: Path, tmp_path: Path) -> None:
    for names in (("runs/a/x.json", "runs/A/x.json"), ("runs/a/x.json", "runs/a/x.json/y.json")):
        refused(forged(small, tmp_path / "odd.zip", dict.fromkeys(names, b"{}")), "some file systems")


# -- contents that fit the list and are not what we write --------------------------------------------------------------


def test_documents_that_were_changed_and_made_to_fit_are_refused(whole: Path, made: StoredCase, tmp_path: Path) -> None:
    held = contents(whole)
    run = f"runs/{made.comparison}"
    answer = json.loads(held[f"{run}/answer.json"])
    findings = json.loads(held["case/findings.json"])
    findings["findings"][0]["claim"] = "They part in `aten.mm.default`."
    trace = manifest_of(whole)["traces"][made.comparison]["suspect"]
    source = next(name for name in held if "/sources/" in name)
    manifest = json.loads(held[f"{trace}/rank-00000/manifest.json"])
    changes: dict[str, dict[str, bytes | None]] = {
        "a claim": {"case/findings.json": json.dumps(findings).encode()},
        "no case": {"case/case.json": b"{}"},
        "a verdict that is none": {f"{run}/answer.json": json.dumps({**answer, "verdict": "fine"}).encode()},
        "an answer that is no JSON": {f"{run}/answer.json": b"\xff"},
        "no answer": {f"{run}/answer.json": None},
        "an answer about another trace": {f"{run}/answer.json": json.dumps({**answer, "digests": {"suspect": "0" * 64}}).encode()},
        "a manifest of a rank": {f"{trace}/rank-00000/manifest.json": json.dumps({**manifest, "pid": 1}).encode()},
        "no trace": {name: None for name in held if name.startswith(f"{trace}/")},
        "another source text": {source: gzip.compress(b"import os")},
        "a source text of another name": {source: None, source.replace(source.split("/")[-1][:8], "0" * 8): held[source]},
        "filters that are none": {"case/filters.json": b"[]"},
    }
    for what, changed in changes.items():
        path = forged(whole, tmp_path / f"{len(what)}-{what.replace(' ', '-')}.zip", changed)
        try:
            open_pack(path)
        except PackDamaged:
            assert nothing_was_opened(), what
        else:
            pytest.fail(f"{what}: it was opened")
    assert open_pack(forged(whole, tmp_path / "same.zip")).new
