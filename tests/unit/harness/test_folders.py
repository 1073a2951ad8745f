"""Results appear whole or not at all; nothing half done stays after an interrupt."""

import errno
import signal
import stat

import pytest

from opguard_core.errors import Interrupted
from opguard_harness.compare import folders
from opguard_harness.compare.folders import Results, choose_out, private_copy, scratch, uninterrupted
from opguard_harness.errors import OutRefused, ScratchRefused, SpaceShort, SystemRefused


def below(path):
    return sorted(str(item.relative_to(path)) for item in path.rglob("*"))


def test_a_finished_folder_has_its_name_and_is_private(tmp_path):
    final = tmp_path / "new" / "out"
    with Results(final) as results:
        assert not final.exists()
        (results.partial / "answer.json").write_text("{}")
        results.finish()
    assert below(tmp_path) == ["new", "new/out", "new/out/answer.json"]
    assert stat.S_IMODE(final.stat().st_mode) == 0o700


def test_an_empty_folder_is_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    with Results(choose_out(tmp_path / "out", [])) as results:
        (results.partial / "a").touch()
        results.finish()
    assert below(tmp_path) == ["out", "out/a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("x")])
def test_an_interrupt_leaves_nothing_not_even_new_parents(tmp_path, error):
    with pytest.raises(type(error)), Results(tmp_path / "a" / "b" / "out") as results:
        results.keep()
        (results.partial / "trace").mkdir()
        raise error
    assert below(tmp_path) == []


def test_a_failure_before_anything_ran_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="no"), Results(tmp_path / "out"):
        raise ValueError("no")
    assert below(tmp_path) == []


def test_a_failure_after_a_program_ran_keeps_its_output_beside(tmp_path):
    for name in ("out.failed", "out.failed-2"):
        with pytest.raises(ValueError, match="no"), Results(tmp_path / "out") as results:
            results.keep()
            (results.partial / "stderr.txt").write_text("why")
            raise ValueError("no")
        assert (tmp_path / name / "stderr.txt").read_text() == "why"
    assert not (tmp_path / "out").exists()


def test_out_must_be_absent_or_empty(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for name in ("full", "file"):
        with pytest.raises(OutRefused, match="not an empty folder"):
            choose_out(tmp_path / name, [])


def test_out_never_lies_inside_a_side_not_even_through_a_link(tmp_path):
    side = tmp_path / "side"
    side.mkdir()
    (tmp_path / "link").symlink_to(side)
    for out in (side, side / "out", tmp_path / "link" / "deep" / "out", tmp_path / "x" / ".." / "side" / "out"):
        with pytest.raises(OutRefused, match="inside the side"):
            choose_out(out, [side])


def test_without_out_results_go_to_the_private_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    out = choose_out(None, [])
    assert out.parent == tmp_path / "opguard" / "runs"
    assert stat.S_IMODE(out.parent.stat().st_mode) == 0o700


def test_a_state_folder_of_someone_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(SystemRefused, match="another user"):
        choose_out(None, [])


def test_a_disk_without_room_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1024})())
    with pytest.raises(SpaceShort), Results(tmp_path / "a" / "out"):
        raise AssertionError("entered")
    assert below(tmp_path) == []


def test_a_private_copy_keeps_links_and_leaves_byte_code_and_pipes(tmp_path):
    import os

    source = tmp_path / "side"
    (source / "pkg" / "__pycache__").mkdir(parents=True)
    (source / "pkg" / "__pycache__" / "m.pyc").touch()
    (source / "pkg" / "m.py").write_text("x = 1\n")
    (source / "data").symlink_to("/nowhere")
    os.mkfifo(source / "pipe")
    copy = private_copy(source, tmp_path / "copy")
    assert below(copy) == ["data", "pkg", "pkg/m.py"]
    assert (copy / "data").is_symlink()


def test_a_private_copy_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / "big").write_bytes(b"x" * 4096)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: type("Usage", (), {"free": folders.MIN_FREE_BYTES + 100})())
    with pytest.raises(SpaceShort, match="private copy"):
        private_copy(tmp_path / "side", tmp_path / "copy")


def test_scratch_goes_whatever_happens(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), scratch("x") as folder:
        (folder / "file").touch()
        raise KeyboardInterrupt
    assert below(tmp_path) == ["opguard", "opguard/scratch"]


def test_scratch_of_a_killed_process_goes_when_the_next_is_made_and_that_in_use_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with scratch("x") as used:
        left = used.with_name("20260101-000000-compare-abcdef")
        (left / "deep").mkdir(parents=True)
        link = used.with_name("link")
        link.symlink_to(tmp_path)
        with scratch("y") as other:
            assert (used.is_dir(), other.is_dir(), left.exists(), link.is_symlink()) == (True, True, False, True)


def test_where_folders_cannot_be_locked_scratch_is_made_all_the_same_and_nothing_is_swept(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.EBADF, "as on NFS")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with scratch("demo") as folder:
        left = folder.with_name("left")
        left.mkdir()
    monkeypatch.setattr(folders.fcntl, "flock", refuse)
    with scratch("demo") as folder:
        assert folder.is_dir()
        assert left.is_dir()
    assert not folder.exists()


def test_scratch_and_results_of_a_side_that_is_the_home_folder_lie_elsewhere(tmp_path, monkeypatch):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    for folder in (home, temporary):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(temporary))
    with scratch("x", [tmp_path / "other", home]) as folder:
        assert folder.parent == temporary
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.raises(OutRefused, match="inside the side") as refused:
        choose_out(None, [home])
    assert "XDG_STATE_HOME" in refused.value.as_dict()["fix"]
    with pytest.raises(ScratchRefused, match="lie inside the side"), scratch("x", [tmp_path]):
        raise AssertionError("entered")
    assert below(tmp_path) == ["home", "tmp"]


def test_a_private_copy_never_lies_inside_its_source(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "side")
    (tmp_path / "side" / "deep").mkdir(parents=True)
    with pytest.raises(ScratchRefused, match="would lie inside it"):
        private_copy(tmp_path / "side", tmp_path / "link" / "deep" / "copy")


def test_a_second_interrupt_does_not_stop_the_removal():
    import os

    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
