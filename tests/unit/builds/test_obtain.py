"""Builds of C and C++ parts: once per node, whole, keyed by all that decides, and every failure is a reason."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opguard_core.builds import Built, NotBuilt, Recipe, lock, obtain, obtaining, prepare, python_recipe_parts, torch_recipe_parts
from opguard_core.builds.compilers import find_compilers

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPGUARD_NO_COMPILER", raising=False)
    return tmp_path / "cache" / "opguard" / "build"


def part(tmp_path, text="int answer(void) { return 42; }\n", **changes):
    source = tmp_path / "part.c"
    source.write_text(text)
    return dataclasses.replace(Recipe(name="part", source=source, says="the part"), **changes)


def needs_compiler(language="c"):
    if not find_compilers(language):
        pytest.skip(f"no {language} compiler on PATH")


def fake_compiler(tmp_path, monkeypatch, script, name="cc"):
    """A compiler that notes each of its runs in ``runs``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path / 'runs'}\n{script}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if "sleep" in script else str(folder))
    monkeypatch.setenv("CC", str(program))


@pytest.mark.parametrize(("language", "suffix"), [("c", "c"), ("c++", "cpp")])
def test_a_part_is_built_and_opened(tmp_path, language, suffix):
    needs_compiler(language)
    source = tmp_path / f"part.{suffix}"
    source.write_text('extern "C" int answer() { return 42; }' if suffix == "cpp" else "int answer(void) { return 42; }")
    built = obtain(Recipe(name="part", source=source, language=language), lambda path: ctypes.CDLL(str(path)))
    assert isinstance(built, Built)
    assert built.opened.answer() == 42
    assert obtain(Recipe(name="part", source=source, language=language)) == built._replace(opened=None)


def test_everything_that_decides_is_in_the_key(tmp_path):
    needs_compiler()
    header = tmp_path / "part.h"
    header.write_text("")
    recipe = part(tmp_path, headers=(header,))
    paths = {obtain(recipe).path}
    header.write_text("/* changed */")
    paths.add(obtain(recipe).path)
    for change in ({"flags": ("-DX",)}, {"facts": ("torch 2.13.0",)}, {"libraries": ("-lm",)}):
        paths.add(obtain(dataclasses.replace(recipe, **change)).path)
    assert len(paths) == 5


def test_flags_that_fail_are_followed_by_the_next(tmp_path):
    needs_compiler()
    built = obtain(part(tmp_path, tunings=(("--no-such-flag",), ("-DFINE",))))
    assert isinstance(built, Built)
    assert built.flags[-1] == "-DFINE"


def test_a_file_that_does_not_open_is_followed_by_the_next(tmp_path):
    needs_compiler()
    paths = []

    def open_second(path):
        paths.append(path)
        if len(paths) == 1:
            raise ImportError("not this one")
        return "opened"

    built = obtain(part(tmp_path, tunings=((), ("-DOTHER",))), open_second)
    assert isinstance(built, Built)
    assert (built.path, built.opened) == (paths[1], "opened")


def test_a_failing_part_says_which_it_is(tmp_path):
    needs_compiler()
    answer = obtain(part(tmp_path, "this is not C\n"))
    assert isinstance(answer, NotBuilt)
    assert answer.reason.startswith("no C compiler could build the part: ")
    assert "error" in answer.reason


def test_a_missing_source_is_a_reason(tmp_path):
    needs_compiler()
    answer = obtain(Recipe(name="part", source=tmp_path / "gone.c"))
    assert isinstance(answer, NotBuilt)
    assert "gone.c" in answer.reason


def test_a_compiler_can_be_declined(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGUARD_NO_COMPILER", "1")
    assert obtain(part(tmp_path)) == NotBuilt("OPGUARD_NO_COMPILER is set")


def test_a_missing_cpp_compiler_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    answer = obtain(part(tmp_path, language="c++"))
    assert answer == NotBuilt("no C++ compiler: none of $CXX, c++, g++, clang++ is on PATH")


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path, monkeypatch):
    needs_compiler()
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(blocked))
    answer = obtain(part(tmp_path))
    assert isinstance(answer, NotBuilt)
    assert answer.reason.startswith("the part has no private folder to live in: ")


def test_a_short_build_is_silent_and_a_long_one_says_so(tmp_path, monkeypatch, capsys):
    needs_compiler()
    obtain(part(tmp_path))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(obtaining, "QUIET_S", 0.0)
    obtain(part(tmp_path, flags=("-DLONG",)))
    said = capsys.readouterr().err
    assert "opguard: building the part with " in said
    assert "opguard: built the part in " in said


def test_a_compiler_that_hangs_is_ended(tmp_path, monkeypatch):
    fake_compiler(tmp_path, monkeypatch, "exec sleep 60\n")
    monkeypatch.setattr(obtaining, "QUIET_S", 0.01)
    monkeypatch.setattr("opguard_core.builds.compilers._COMMANDS", {"c": (), "c++": ()})
    answer = obtain(part(tmp_path, seconds=0.05))
    assert isinstance(answer, NotBuilt)
    assert "timed out" in answer.reason


def test_whoever_waited_for_a_failing_build_does_not_repeat_it(tmp_path, monkeypatch):
    fake_compiler(tmp_path, monkeypatch, "echo 'no space for you' >&2\nexit 1\n")
    monkeypatch.setattr("opguard_core.builds.compilers._COMMANDS", {"c": (), "c++": ()})
    recipe = part(tmp_path)
    key = obtaining._key(recipe, find_compilers()[0], (*obtaining._BASE, *recipe.flags))
    place = tmp_path / "cache" / "opguard" / "build"
    place.mkdir(parents=True, mode=0o700)
    waits = threading.Event()
    answers = []

    def wait_and_build():
        real = lock._hold

        def hold(descriptor, limit_s, waiting):
            return real(descriptor, limit_s, lambda seconds: (waits.set(), waiting(seconds)))

        monkeypatch.setattr(lock, "_hold", hold)
        answers.append(obtain(recipe))

    with lock.turn(place / f".part-{key}.lock", 60.0, lambda _: None) as ours:
        second = threading.Thread(target=wait_and_build)
        second.start()
        waits.wait(60)
        ours.failed("the first one's words")
    second.join()
    assert "the first one's words" in answers[0].reason
    assert not (tmp_path / "runs").exists()
    assert list(place.iterdir()) == []


def test_many_processes_build_once(tmp_path, monkeypatch):
    needs_compiler()
    real = find_compilers()[0][0]
    fake_compiler(tmp_path, monkeypatch, f'exec {real} "$@"\n')
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/usr/bin:/bin")
    part(tmp_path)
    code = (
        "from pathlib import Path; from opguard_core.builds import Recipe, obtain; "
        f"print(obtain(Recipe(name='part', source=Path({str(tmp_path / 'part.c')!r}))).path)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    racers = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {racer.communicate()[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(answers) == 1
    assert (tmp_path / "runs").read_text() == "run\n"


def test_prepare_answers_by_name_and_passes_over_what_cannot_be_written_down(tmp_path):
    needs_compiler()
    answers = prepare([NotBuilt("torch is not installed"), part(tmp_path)])
    assert set(answers) == {"part"}
    assert isinstance(answers["part"], Built)


def test_an_extension_module_of_this_interpreter_can_be_built(tmp_path):
    needs_compiler()
    parts = python_recipe_parts()
    if isinstance(parts, NotBuilt):
        pytest.skip(parts.reason)
    text = (
        '#include <Python.h>\nstatic struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "part", .m_size = -1};\n'
        "PyMODINIT_FUNC PyInit_part(void) { return PyModule_Create(&module); }\n"
    )
    built = obtain(part(tmp_path, text, flags=parts.flags, facts=parts.facts), lambda path: obtaining.load_extension("part", path))
    assert isinstance(built, Built), built
    assert built.opened.__name__ == "part"


@pytest.mark.torch
def test_torch_is_described_without_importing_it():
    code = (
        "import sys; from opguard_core.builds import torch_recipe_parts; parts = torch_recipe_parts(); "
        "assert 'torch' not in sys.modules; print(parts.facts[-1]); print(parts.flags[2][-1])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    torch = pytest.importorskip("torch")
    version, strings = done.stdout.splitlines()
    assert torch.__version__ in version
    assert strings == str(int(torch._C._GLIBCXX_USE_CXX11_ABI))
    assert torch_recipe_parts().facts[-1] == version
