"""The cache of rewritten modules: private, sealed, rebuilt when damaged, and never read where others can write."""

import os

import pytest

from opguard_core.instrument.cache import Cache, key_of
from opguard_core.instrument.rewrite import rewrite

FILE = "/nowhere/program.py"
SOURCE = b"def f(x):\n    return g(x)\n"


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return Cache(folder)


def kept(cache, source=SOURCE):
    key = key_of(source, FILE, everything=False)
    cache.keep(key, FILE, rewrite(source, FILE, key))
    return key


def entry(cache):
    (path,) = cache._folder.iterdir()
    return path


def test_what_was_kept_is_found_whole(cache):
    key = kept(cache)
    found = cache.find(key, FILE)
    made = rewrite(SOURCE, FILE, key)
    assert found.code == made.code
    assert (found.sites, found.left) == (made.sites, made.left)
    assert entry(cache).stat().st_mode & 0o777 == 0o600


def test_any_change_of_an_entry_is_seen_and_it_is_made_again(cache):
    key = kept(cache)
    path = entry(cache)
    whole = path.read_bytes()
    for damaged in (b"", whole[:10], whole[:60], whole[:-1], whole + b"x", whole[:70] + bytes([whole[70] ^ 1]) + whole[71:]):
        path.write_bytes(damaged)
        assert cache.find(key, FILE) is None
    assert cache.num_damaged == 6
    kept(cache)
    assert cache.find(key, FILE) is not None


def test_a_key_says_all_that_decides(monkeypatch):
    keys = {
        key_of(SOURCE, FILE, everything=False),
        key_of(SOURCE + b"#", FILE, everything=False),
        key_of(SOURCE, FILE + "c", everything=False),
        key_of(SOURCE, FILE, everything=True),
        key_of(SOURCE, FILE, everything=False, first="f"),
    }
    monkeypatch.setattr("opguard_core.instrument.cache.VERSION", 0)
    keys.add(key_of(SOURCE, FILE, everything=False))
    monkeypatch.setattr("sys.version", "other")
    keys.add(key_of(SOURCE, FILE, everything=False))
    assert len(keys) == 7


def test_entries_that_others_can_write_or_that_are_links_are_not_read(cache, tmp_path):
    key = kept(cache)
    path = entry(cache)
    path.chmod(0o666)
    assert cache.find(key, FILE) is None
    path.chmod(0o600)
    assert cache.find(key, FILE) is not None
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert cache.find(key, FILE) is None


def test_only_a_folder_that_is_ours_alone_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    shared = tmp_path / "home" / "opguard" / "callsites"
    shared.mkdir(parents=True)
    shared.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / f"opguard-callsites-{os.getuid()}").symlink_to(tmp_path)
    cache = Cache()
    assert "0700" in cache.why_not
    key = kept(cache)
    assert cache.find(key, FILE) is None
    assert list(shared.iterdir()) == []


def test_of_one_file_only_the_last_versions_stay(cache):
    for number in range(7):
        kept(cache, SOURCE + b"# %d" % number)
    assert len(list(cache._folder.iterdir())) == 4


def test_a_folder_that_cannot_be_written_is_no_error(cache):
    cache._folder = cache._folder / "gone"
    key = kept(cache)
    assert cache.find(key, FILE) is None
    assert "FileNotFoundError" in cache.why_not
