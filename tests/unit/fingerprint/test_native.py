"""Building the compiled twin: private, whole, raced by many, and every way it can fail is a reason."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from opguard_core.builds import obtaining, private_folder
from opguard_core.builds.compilers import find_compilers
from opguard_core.fingerprint import cpu, native
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from tests.support.twins import chunked, native_or_skip, random_codes, strides_of

REPOSITORY = Path(__file__).parents[3]


def build_and_open(compiler, tuning, folder):
    return native.loaded(obtaining.build_and_open(native.recipe(), compiler, tuning, folder, native.open_library))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(blocked))
    return tmp_path / "cache" / "opguard" / "build"


@pytest.fixture
def compiler():
    native_or_skip()
    return find_compilers()[0]


def fake_compiler(tmp_path, monkeypatch, script):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "cc"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)


def test_a_build_is_private_and_whole(cache, compiler):
    loaded = native.load()
    assert isinstance(loaded, native.Native)
    assert loaded.path.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    assert list(cache.iterdir()) == [loaded.path]
    assert loaded.path.stat().st_mode & 0o777 == 0o700


def test_a_second_load_does_not_build(cache, compiler, monkeypatch):
    first = native.load()
    monkeypatch.setattr(obtaining, "_build", lambda *_: pytest.fail("built twice"))
    again = native.load()
    assert (again.path, again.compiler, again.flags) == (first.path, first.compiler, first.flags)


def test_other_flags_and_other_source_are_other_files(cache, compiler, monkeypatch, tmp_path):
    folder = private_folder()
    plain = build_and_open(compiler, (), folder).path
    assert build_and_open(compiler, ("-DUNUSED",), folder).path != plain
    edited = tmp_path / "edited.c"
    edited.write_bytes(native.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(native, "SOURCE", edited)
    shutil.copy(Path(native.__file__).with_name("dense.h"), tmp_path)
    assert build_and_open(compiler, (), folder).path != plain


@pytest.mark.parametrize("keep", [0, 5000])
def test_a_library_cut_short_is_never_loaded(cache, compiler, monkeypatch, keep):
    path = native.load().path
    whole = path.read_bytes()
    path.unlink()  # the old file may be mapped: replace it, do not write into it
    path.write_bytes(whole[:keep])
    path.chmod(0o700)
    loaded = native.load()
    assert isinstance(loaded, native.Native)
    assert loaded.path.read_bytes() == whole


def test_a_folder_that_others_can_enter_is_refused(cache, monkeypatch):
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    monkeypatch.setattr(obtaining, "_build", lambda *_: pytest.fail("built into an open folder"))
    loaded = native.load()
    assert isinstance(loaded, native.NoNative)
    assert "only this user can enter" in loaded.reason


def test_a_link_in_place_of_the_folder_is_refused(cache, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    cache.parent.mkdir(parents=True)
    cache.symlink_to(target)
    assert isinstance(native.load(), native.NoNative)


def test_a_library_that_others_can_write_is_not_loaded(cache, compiler):
    path = native.load().path
    path.chmod(0o777)
    with pytest.raises(PermissionError, match="only this user can write"):
        build_and_open(compiler, ("-march=native",), cache)
    loaded = native.load()
    assert isinstance(loaded, native.NoNative) or loaded.path != path


def test_a_relative_cache_home_does_not_land_in_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert private_folder() == tmp_path / "home" / ".cache" / "opguard" / "build"
    assert not (tmp_path / "here").exists()


def test_an_unwritable_home_falls_back_to_a_private_temporary_folder(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert private_folder() == tmp_path / f"opguard-build-{os.getuid()}"


def test_no_compiler_is_a_reason(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert native.load() == native.NoNative("no C compiler: none of $CC, cc, gcc, clang is on PATH")


def test_a_compiler_can_be_declined(cache, monkeypatch):
    monkeypatch.setenv("OPGUARD_NO_COMPILER", "1")
    assert native.load() == native.NoNative("OPGUARD_NO_COMPILER is set")


def test_a_failing_compiler_is_a_reason_with_its_words(cache, tmp_path, monkeypatch):
    fake_compiler(tmp_path, monkeypatch, "echo 'no space for you' >&2\nexit 1\n")
    loaded = native.load()
    assert isinstance(loaded, native.NoNative)
    assert "no space for you" in loaded.reason
    assert list(cache.iterdir()) == []


def test_a_compiler_that_writes_rubbish_is_a_reason(cache, tmp_path, monkeypatch):
    fake_compiler(tmp_path, monkeypatch, 'while [ "$1" != -o ]; do shift; done\necho rubbish > "$2"\n')
    assert isinstance(native.load(), native.NoNative)


def test_an_unbalanced_cc_is_passed_over(cache, compiler, monkeypatch):
    monkeypatch.setenv("CC", 'gcc "')
    assert isinstance(native.load(), native.Native)


def test_many_processes_may_race_for_the_first_build(cache, compiler):
    code = "from opguard_core.fingerprint import cpu; print(cpu.implementation().path, cpu.fingerprint_bytes(b'race'))"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    racers = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {racer.communicate()[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 4
    (answer,) = answers
    assert int(answer.split()[1]) == cpu.fingerprint_bytes(b"race")
    assert [entry.suffix for entry in cache.iterdir()] == [".so"]


@pytest.mark.parametrize(
    "tuning",
    [(), ("-march=x86-64-v3",), ("-march=native", "-mno-avx512f"), ("-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")],
)
def test_every_instruction_set_gives_the_same_bits(cache, compiler, tuning, monkeypatch):
    if tuning and platform.machine() != "x86_64":
        pytest.skip("the hand-written loops are for x86-64")
    try:
        loaded = build_and_open(compiler, tuning, private_folder())
    except subprocess.CalledProcessError:
        pytest.skip(f"{compiler} has no {tuning}")
    if "x86-64-v3" in str(tuning) and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    monkeypatch.setattr(cpu, "_loaded", loaded)
    rng = np.random.default_rng(3)
    for dtype, element in ELEMENT_TYPES.items():
        for shape in [(1,), (13,), (2, 3, 5), (67, 45), (3001,)]:
            for x in (random_codes(rng, shape, dtype, 1), random_codes(rng, shape, dtype).T):
                assert cpu.Reader(element, x.shape, strides_of(x)).read(x.ctypes.data) == chunked(x, dtype)
