"""The filter file: private, whole or untouched, one writer at a time, and nothing in it believed before it is checked."""

import json
import multiprocessing
import stat

import pytest

from opguard_core.certify.filters import parse_filter
from opguard_core.errors import FilterInvalid
from opguard_harness.errors import FilterNotFound, FiltersDamaged
from opguard_harness.workspace.filter_file import FORMAT, MAX_BYTES, add_filter, filter_path, read_filters, remove_filter


def made(slot="out.0", **more):
    site = {"file": "m.py", "function": "f", "text": "g(x)"}
    rule = {"operator": "aten.sin.default", "slot": slot, "suspect": site, "reason": "logged", "evidence": ["suspect:0:1"]}
    return parse_filter({**rule, **more})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "filters.json"


def test_what_is_added_is_read_back_in_the_order_of_ids(path):
    new = [made(f"out.{at}", author="\x1b[31m \N{SNOWMAN}", created="2026-01-02T03:04:05Z") for at in range(5)]
    assert all(add_filter(path, rule) for rule in new)
    assert read_filters(path) == sorted(new, key=lambda rule: rule.id)
    assert path.read_bytes().isascii()
    assert json.loads(path.read_text())["format"] == FORMAT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".filters.json.lock", "filters.json"]


def test_a_missing_file_has_no_filters_unless_somebody_named_it(path):
    assert read_filters(path) == []
    with pytest.raises(FiltersDamaged, match="does not exist"):
        read_filters(path, required=True)


def test_the_state_folder_has_a_file_of_its_own_and_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    add_filter(filter_path(""), made())
    assert filter_path("") == tmp_path / "opguard" / "filters.json"
    assert stat.S_IMODE((tmp_path / "opguard").stat().st_mode) == 0o700


def test_adding_the_same_again_changes_nothing(path):
    assert add_filter(path, made(created="2026-01-01T00:00:00Z"))
    before = path.read_bytes()
    assert not add_filter(path, made(created="2026-02-02T00:00:00Z"))
    assert path.read_bytes() == before


def test_one_difference_has_one_reason(path):
    add_filter(path, made())
    for other in (made(reason="another"), made(id="mine"), made("out.1", id=made().id)):
        with pytest.raises(FilterInvalid, match="hides that difference already"):
            add_filter(path, other)
    assert read_filters(path) == [made()]


def test_a_filter_is_removed_by_its_id(path):
    add_filter(path, made())
    add_filter(path, made("out.1"))
    with pytest.raises(FilterNotFound, match="no filter 'nope'"):
        remove_filter(path, "nope")
    assert remove_filter(path, made().id) == made()
    assert read_filters(path) == [made("out.1")]


def _document(**changes):
    return json.dumps({"format": FORMAT, "filters": [made().as_dict()], **changes}).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no filter file"),
        (b'{"filters": {}}', "no filter file"),
        (_document(format=FORMAT + 1), "has format 2; this release reads 1"),
        (_document(format=True), "has format True"),
        (_document(format=1.0), r"has format 1\.0"),
        (_document(format=None), "has format None"),
        (_document(colour="red"), "keys beside"),
        (_document(filters=[made().as_dict()] * 2), "Two filters"),
        (_document(filters=[{**made().as_dict(), "suspect": None}]), "names no place"),
        (_document(filters=[{**made().as_dict(), "reason": ""}]), "gives no reason"),
        (_document(filters=[3]), "not int"),
        (_document()[:-1] + b', "filters": []}', "has 'filters' twice"),
        (b" " * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_a_damaged_file_is_a_clear_error_and_stays_as_it_is(path, data, said):
    path.write_bytes(data)
    for attempt in (lambda: read_filters(path), lambda: add_filter(path, made("out.7")), lambda: remove_filter(path, "x")):
        with pytest.raises(FiltersDamaged, match=said) as caught:
            attempt()
        assert str(path) in caught.value.message
    assert path.read_bytes() == data


def test_a_link_stays_a_link_and_its_target_changes(path):
    link = path.with_name("link.json")
    link.symlink_to(path.name)
    add_filter(link, made())
    add_filter(path, made("out.1"))
    remove_filter(link, made().id)
    assert link.is_symlink()
    assert read_filters(link) == read_filters(path) == [made("out.1")]


def test_a_folder_is_no_filter_file(tmp_path):
    with pytest.raises(FiltersDamaged, match="is no file"):
        read_filters(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    add_filter(path, made())
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opguard_core.trace.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        add_filter(path, made("out.1"))
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".filters.json.lock", "filters.json"]


def _add_many(path, prefix, count):
    for at in range(count):
        add_filter(path, made(f"{prefix}.{at}"))


def test_two_writers_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(path, prefix, 25)) for prefix in ("out", "in")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert {rule.slot for rule in read_filters(path)} == {f"{prefix}.{at}" for prefix in ("out", "in") for at in range(25)}
