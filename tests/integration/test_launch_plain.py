"""The launcher around programs without torch, or with a stand-in: refusals, exit codes, signals, descriptors."""

import json
import os
import pty
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from opguard_core.builds.compilers import find_compilers
from opguard_core.plan.command import launch_argv


def _env(**more):
    return {**{key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON"))}, **more}


def _launch(tmp_path, argv, *, python=sys.executable, env=None, **how):
    return subprocess.run(
        launch_argv(python, tmp_path / "trace", argv), cwd=tmp_path, env=env or _env(), capture_output=True, text=True, check=False, **how
    )


def _manifest(tmp_path):
    return json.loads((tmp_path / "trace" / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        ([sys.executable, "-c", "print('hi')"], 0, "never imported torch; it ended with exit code 0"),
        ([sys.executable, "-c", "import sys; sys.exit(1)"], 1, "never imported torch; it ended with exit code 1"),
        ([sys.executable, "no_such_file.py"], 2, "'no_such_file.py'"),
        (["sh", "-c", "exit 4"], 4, "No Python process of 'sh' ran our bootstrap"),
        (["env", "-u", "PYTHONPATH", sys.executable, "-c", ""], 0, "No Python process of 'env'"),
    ],
    ids=["never", "exits-before", "no-file", "no-python", "path-dropped"],
)
def test_a_program_in_which_no_capture_started_is_an_error_that_says_why(tmp_path, argv, code, text):
    done = _launch(tmp_path, argv)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.rstrip().endswith("[nothing-captured]")
    manifest = _manifest(tmp_path)
    assert (manifest["exit"], manifest["ranks"], manifest["complete"]) == ({"code": code, "signal": None}, [], True)
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["manifest.json"]


@pytest.mark.parametrize(
    ("argv", "slug"),
    [
        ([sys.executable, "-I", "-c", "open('ran', 'w')"], "nothing-captured"),
        (["no-such-program"], "launch-failed"),
        ([], "config"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(tmp_path, argv, slug):
    done = _launch(tmp_path, argv)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(f"[{slug}]")
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_the_system_cannot_start_leaves_nothing(tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF, not really")
    broken.chmod(0o755)
    done = _launch(tmp_path, [str(broken)])
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("[launch-failed]")
    assert list(tmp_path.iterdir()) == [broken]


def test_a_run_inside_a_run_is_refused(tmp_path):
    inner = launch_argv(sys.executable, tmp_path / "inner", [sys.executable, "-c", ""])
    done = _launch(tmp_path, inner)
    assert done.returncode == 2
    assert "already inside an observed run" in done.stderr


def test_our_own_mistakes_end_in_2_and_never_in_1(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from opguard_core.launch import command, launcher\n"
        "launcher.child.run_child = lambda *_, **__: 1 / 0\nsys.exit(command.main())"
    )
    words = launch_argv(sys.executable, tmp_path / "trace", [sys.executable, "-c", ""])
    done = subprocess.run([sys.executable, "-c", code, os.path.dirname(words[1]), *words[2:]], env=_env(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "ZeroDivisionError: division by zero This is a mistake in OpGuard." in done.stderr


def test_descriptors_and_standard_input_are_passed_on(tmp_path):
    reader, writer = os.pipe()
    program = f"import os, sys; os.write({writer}, sys.stdin.buffer.read()); print(os.get_inheritable(0))"
    done = _launch(tmp_path, [sys.executable, "-c", program], input="text", pass_fds=(writer,))
    os.close(writer)
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert done.stdout == "True\n"


WAITS = r"""
import os, signal, sys, time
def told(number, frame):
    os.write(1, b"told %d\n" % number)  # print is not reentrant, and the signal may come while it says "ready"
    sys.exit(9)
if sys.argv[1:]:
    signal.signal(int(sys.argv[1]), told)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # a pause would sleep on when the signal comes just before it
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_launcher_reaches_the_program(tmp_path, number):
    for handled in (True, False):
        out = tmp_path / str(handled)
        argv = [sys.executable, "-c", WAITS, *([str(int(number))] if handled else [])]
        with subprocess.Popen(
            launch_argv(sys.executable, out, argv), env=_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as launcher:
            assert launcher.stdout.readline() == "ready\n"
            launcher.send_signal(number)
            said = launcher.communicate(timeout=60)
        if number == signal.SIGUSR1 and handled:
            assert "[nothing-captured]" in said[1]  # not an interrupt: the missing capture is what counts
            continue
        assert said[0] == (f"told {int(number)}\n" if handled else "")
        if number == signal.SIGUSR1:
            continue
        assert launcher.returncode == (9 if handled else 128 + number)
        assert json.loads((out / "manifest.json").read_text())["complete"]


def test_ctrl_c_at_a_terminal_reaches_the_program_once_and_its_input_works(tmp_path):
    program = r"""
import os, signal, time
count = 0
def told(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, told)
os.write(1, b"said:" + input().encode() + b" ")
while not count:
    time.sleep(0.1)  # as above
os.write(1, b"interrupts:%d group:%d " % (count, os.tcgetpgrp(0) == os.getpgrp()))
os._exit(4)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        argv = launch_argv(sys.executable, tmp_path / "trace", [sys.executable, "-c", program])
        os.execve(argv[0], argv, _env())
    os.write(terminal, b"hello\n")
    seen = _read_until(terminal, b"said:hello")
    os.write(terminal, b"\x03")
    seen += _read_until(terminal, b"group:1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    os.close(terminal)
    assert b"interrupts:1 group:1" in seen
    assert json.loads((tmp_path / "trace" / "manifest.json").read_text())["exit"] == {"code": 4, "signal": None}


def _read_until(descriptor, wanted):
    seen = b""
    while wanted not in seen:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # the terminal has no program any more
            break
        if not part:
            break
        seen += part
    return seen


@pytest.mark.full
def test_what_the_program_leaves_behind_after_an_interrupt_is_ended(tmp_path):
    program = (
        "import os, signal, sys\n"
        "if os.fork() == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    print(os.getpid(), flush=True)\n"
        "while True: signal.pause()\n"
    )
    argv = launch_argv(sys.executable, tmp_path / "trace", [sys.executable, "-c", program])
    with subprocess.Popen(argv, env=_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        orphan = int(launcher.stdout.readline())
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=60)
    assert launcher.returncode == 143
    status = Path(f"/proc/{orphan}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.fixture
def bare_python(tmp_path):
    """An interpreter with nothing installed, and a stand-in torch to import."""
    venv.create(tmp_path / "env", with_pip=False)
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("__version__ = '0'\n")
    return str(tmp_path / "env" / "bin" / "python"), _env(PYTHONPATH=str(tmp_path / "lib"))


def test_a_training_python_that_lacks_packages_is_told_the_install_line_before_its_first_step(tmp_path, bare_python):
    python, env = bare_python
    done = _launch(tmp_path, [python, "-c", "print('start', flush=True)\nimport torch\nprint('a step')"], env=env)
    assert (done.returncode, done.stdout) == (2, "start\n")
    assert f"Run: {python} -m pip install 'numpy>=1.26' 'pyarrow>=16' 'orjson>=3.10' [dependency-missing]" in done.stderr
    assert [entry["reason"] for entry in _manifest(tmp_path)["left_alone"]] == ["dependency-missing"]


def test_a_launcher_that_lacks_packages_says_so(tmp_path, bare_python):
    python, env = bare_python
    done = _launch(tmp_path, [python, "-c", "import torch"], python=python, env=env)
    assert done.returncode == 2
    assert f"Run: {python} -m pip install 'orjson>=3.10' [dependency-missing]" in done.stderr


def test_a_capture_that_fails_to_start_ends_the_program_with_our_traceback(tmp_path, bare_python):
    _, env = bare_python
    done = _launch(tmp_path, [sys.executable, "-c", "print('start')\nimport torch\nprint('a step')"], env=env)
    assert (done.returncode, done.stdout) == (2, "start\n")
    assert "Capture did not start" in done.stderr
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("[capture]")


def test_the_native_fingerprint_is_built_before_the_program_starts(tmp_path):
    if not find_compilers():
        pytest.skip("no C compiler")
    build = tmp_path / "cache" / "opguard" / "build"
    look = f"import pathlib; print(len(list(pathlib.Path({str(build)!r}).glob('fingerprint-*.so'))))"
    done = _launch(tmp_path, [sys.executable, "-c", look], env=_env(XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert done.stdout == "1\n", done.stderr


def test_the_launch_goes_on_where_the_native_fingerprint_cannot_be_built(tmp_path):
    env = _env(XDG_CACHE_HOME=str(tmp_path / "cache"), PATH="/nowhere", TMPDIR=str(tmp_path))
    done = _launch(tmp_path, [sys.executable, "-c", "print('ran')"], env=env)
    assert done.stdout == "ran\n", done.stderr
