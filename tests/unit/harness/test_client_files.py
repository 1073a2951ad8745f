"""A client's own file: our entry goes in and out, everything else stays, and what could be lost is refused."""

import json
import os
import stat
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_harness.clients import config_file
from opguard_harness.clients.entry import Launch, is_ours
from opguard_harness.clients.install import put, take_out
from opguard_harness.errors import ClientConfigRefused

ENTRY = Launch().entry("ROOT")
OTHER = {"command": "npx", "args": ["-y", "other"], "env": {"TOKEN": "s3cret"}}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def write(project, text, name=".mcp.json"):
    path = project / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def test_a_file_is_made_and_removed_again(project):
    path = project / ".cursor" / "mcp.json"
    assert put(path, project, ENTRY).state == "added"
    assert json.loads(path.read_text()) == {"mcpServers": {"opguard": ENTRY}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert take_out(path, project).state == "removed"
    assert not path.exists()
    assert take_out(path, project).state == "absent"


def test_other_servers_and_names_stay_with_order_and_what_was_there_is_kept(project, tmp_path):
    before = {"$schema": "x", "mcpServers": {"z": OTHER, "a": OTHER}, "inputs": [1, 2.5, None, "\u00e9"]}
    path = write(project, json.dumps(before, indent=4, ensure_ascii=False) + "\n")
    raw = path.read_bytes()
    path.chmod(0o640)
    change = put(path, project, ENTRY)
    after = json.loads(path.read_text("utf-8"))
    assert after == {**before, "mcpServers": {**before["mcpServers"], "opguard": ENTRY}}
    assert list(after["mcpServers"]) == ["z", "a", "opguard"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert change.backup.read_bytes() == raw
    assert stat.S_IMODE(change.backup.stat().st_mode) == 0o600
    assert change.backup.is_relative_to(tmp_path / "state")
    take_out(path, project)
    assert path.read_bytes() == raw, "a file in our layout comes back byte for byte"


def test_asking_twice_changes_nothing(project):
    path = write(project, '{"mcpServers": {}}')
    put(path, project, ENTRY)
    before = path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()
    change = put(path, project, ENTRY)
    assert (change.state, change.backup) == ("unchanged", None)
    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) == before


def test_options_and_keys_that_somebody_added_to_our_entry_stay(project):
    mine = {"command": "/old/venv/bin/opguard-harness", "args": ["mcp", "--read-only", "--root", "x"], "env": {"A": "1"}, "timeout": 9}
    path = write(project, json.dumps({"mcpServers": {"opguard": mine}}))
    change = put(path, project, Launch(("/new/bin/opguard-harness",)).entry("ROOT"))
    assert change.state == "updated"
    assert json.loads(path.read_text())["mcpServers"]["opguard"] == {**mine, "command": "/new/bin/opguard-harness"}


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "sh", "args": ["-c", "opguard-harness mcp"]},
        {"command": "opguard-harness", "args": ["call"]},
        {"command": "python", "args": ["-m", "other", "mcp"]},
        {"url": "http://127.0.0.1:1/mcp"},
        {"command": ["opguard-harness"], "args": ["mcp"]},
        {"command": "opguard-harness", "args": "mcp"},
        "opguard-harness mcp",
        None,
    ],
)
@pytest.mark.parametrize("act", [lambda path, base: put(path, base, ENTRY), take_out])
def test_an_entry_of_our_name_that_starts_something_else_is_left_alone(project, entry, act):
    if entry is None:
        entry = []
    path = write(project, json.dumps({"mcpServers": {"opguard": entry}}))
    before = path.read_bytes()
    with pytest.raises(ClientConfigRefused, match="another program"):
        act(path, project)
    assert path.read_bytes() == before


def test_every_way_to_start_us_is_ours():
    for command, args in (
        ("opguard-harness", ["mcp"]),
        ("/a b/opguard-harness", ["mcp", "--root", "."]),
        ("python3", ["-m", "opguard_harness", "mcp"]),
    ):
        assert is_ours({"command": command, "args": args})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"mcpServers": {} // mine\n}', "comments"),
        ('/* mine */ {"mcpServers": {}}', "comments"),
        ('{"mcpServers": {"a": {},}}', "trailing commas"),
        ('{"mcpServers": {"url": "http://x"}', "is not JSON"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"mcpServers": {"b": {"env": {"A": "1", "A": "2"}}}}', "twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1e400}', "1e400"),
        ('{"a": 0.1000000000000000055511151231257827}', "would be changed"),
        ("[]", "JSON list"),
        ('"x"', "JSON str"),
        ("null", "JSON NoneType"),
        ('{"mcpServers": []}', "no object"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        (b"\x00" * 10, "is not JSON"),
        (b" " * (config_file.LIMIT_BYTES + 1), "more than"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "bytes",
)
def test_what_would_be_lost_is_refused_and_the_file_left_as_it_is(project, text, why):
    path = write(project, text)
    before = path.read_bytes()
    for act in (lambda: put(path, project, ENTRY), lambda: take_out(path, project)):
        with pytest.raises(ClientConfigRefused, match=why):
            act()
    assert path.read_bytes() == before
    assert [entry.name for entry in project.iterdir()] == [".mcp.json"]


@pytest.mark.parametrize("text", ["", " \n\t", "\ufeff"])
def test_an_empty_file_says_nothing(project, text):
    path = write(project, text)
    put(path, project, ENTRY)
    assert json.loads(path.read_text("utf-8-sig"))["mcpServers"]["opguard"] == ENTRY


def test_byte_order_mark_line_ends_tabs_and_escapes_are_kept(project):
    path = write(project, '\ufeff{\r\n\t"x": "\\u00e9\\ud800"\r\n}\r\n')
    put(path, project, ENTRY)
    text = path.read_bytes().decode("utf-8")
    assert text.startswith('\ufeff{\r\n\t"x"')
    assert "\n" not in text.replace("\r\n", "")
    assert json.loads(text.removeprefix("\ufeff"))["x"] == "\u00e9\ud800"


def test_half_a_pair_in_a_file_with_real_characters_is_kept(project):
    path = write(project, '{"x": "\\ud800", "y": "\u00e9"}')
    put(path, project, ENTRY)
    assert json.loads(path.read_text("utf-8"))["x"] == "\ud800"


def test_links_are_followed_inside_the_project_and_refused_out_of_it(project, tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (project / ".mcp.json").symlink_to(outside)
    with pytest.raises(ClientConfigRefused, match="leads out of"):
        put(project / ".mcp.json", project, ENTRY)
    assert outside.read_text() == "{}"
    (project / "kept.json").write_text('{"a": 1}')
    (project / "link.json").symlink_to("kept.json")
    put(project / "link.json", project, ENTRY)
    assert (project / "link.json").is_symlink()
    assert set(json.loads((project / "kept.json").read_text())) == {"a", "mcpServers"}


@pytest.mark.parametrize("target", ["../absent.json", "/absent/opguard.json"])
def test_a_link_to_nothing_outside_is_refused(project, target):
    (project / ".mcp.json").symlink_to(target)
    with pytest.raises(ClientConfigRefused, match="leads out of"):
        put(project / ".mcp.json", project, ENTRY)


def test_a_folder_that_is_a_link_out_is_refused(project, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (project / ".cursor").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClientConfigRefused, match="leads out of"):
        put(project / ".cursor" / "mcp.json", project, ENTRY)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_project_that_is_itself_reached_by_a_link_is_fine(project, tmp_path):
    (tmp_path / "name").symlink_to(project)
    put(tmp_path / "name" / ".mcp.json", tmp_path / "name", ENTRY)
    assert (project / ".mcp.json").is_file()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_what_is_no_file_is_refused_without_waiting(project, make):
    make(project / ".mcp.json")
    with pytest.raises(ClientConfigRefused, match="is not a file"):
        put(project / ".mcp.json", project, ENTRY)


def test_a_change_by_somebody_else_in_between_is_not_overwritten(project, monkeypatch):
    path = write(project, '{"mcpServers": {}}')
    laid_out = config_file._laid_out

    def meanwhile(file, content):
        path.write_text('{"mcpServers": {"new": {}}}')
        return laid_out(file, content)

    monkeypatch.setattr(config_file, "_laid_out", meanwhile)
    with pytest.raises(ClientConfigRefused, match="changed by somebody else"):
        put(path, project, ENTRY)
    assert json.loads(path.read_text()) == {"mcpServers": {"new": {}}}
    assert [entry.name for entry in project.iterdir()] == [".mcp.json"]


def test_a_file_that_appears_in_between_is_not_overwritten(project, monkeypatch):
    path = project / ".mcp.json"
    laid_out = config_file._laid_out
    monkeypatch.setattr(config_file, "_laid_out", lambda file, content: path.write_text("{}") and laid_out(file, content))
    with pytest.raises(ClientConfigRefused, match="changed by somebody else"):
        put(path, project, ENTRY)
    assert path.read_text() == "{}"


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(project, monkeypatch):
    path = write(project, '{"mcpServers": {}}')

    def full(descriptor):
        raise OSError(28, "No space left on device")

    put(project / "warm.json", project, ENTRY)
    (project / "warm.json").unlink()
    monkeypatch.setattr(config_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        put(path, project, ENTRY)
    assert path.read_text() == '{"mcpServers": {}}'
    assert [entry.name for entry in project.iterdir()] == [".mcp.json"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
NAMES = st.text(max_size=6).filter(lambda name: name not in ("opguard", "mcpServers"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.dictionaries(NAMES, VALUES, max_size=3),
    servers=st.none() | st.dictionaries(NAMES, VALUES, max_size=3),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    ascii_only=st.booleans(),
)
def test_in_and_out_again_leaves_everything_that_was_there(project, content, servers, indent, ascii_only):
    before = content if servers is None else {**content, "mcpServers": servers}
    path = write(project, json.dumps(before, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    put(path, project, ENTRY)
    assert json.loads(path.read_text("utf-8")) == {**before, "mcpServers": {**(servers or {}), "opguard": ENTRY}}
    take_out(path, project)
    left = json.loads(path.read_text("utf-8")) if path.exists() else {}
    left.setdefault("mcpServers", {})
    assert left == {**before, "mcpServers": servers or {}}
    path.unlink(missing_ok=True)


def test_the_owner_of_the_file_stays_its_owner(project, monkeypatch):
    path = write(project, "{}")
    given = []
    monkeypatch.setattr(config_file.os, "chown", lambda *call: given.append(call[1:]))
    put(path, project, ENTRY)
    assert given == [], "our own file"
    file = config_file.read_config(path, project)
    config_file.replace_config(replace(file, owner=(4711, 4712)), {})
    assert given == [(4711, 4712)]
