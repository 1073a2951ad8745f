"""Whatever is raised below the edge ends in 2 or 130, with one JSON object when asked; 1 is a delivered "diverged" only."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest

from opguard_core.errors import Interrupted, NothingCaptured
from opguard_harness.__main__ import main
from opguard_harness.cli import app
from opguard_harness.cli.outcome import Outcome
from opguard_harness.edge import as_opguard_error
from tests.support.fake_training import REPOSITORY

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup

RAISED = [
    (RuntimeError("r"), "internal", 2),
    (AssertionError(), "internal", 2),
    (RecursionError("deep"), "internal", 2),
    (ImportError("no module"), "internal", 2),
    (SystemExit(1), "internal", 2),
    (SystemExit(0), "internal", 2),
    (GeneratorExit(), "internal", 2),
    (MemoryError(), "system", 2),
    (OSError(28, "No space left on device", "/x"), "system", 2),
    (BrokenPipeError(32, "Broken pipe"), "system", 2),
    (NothingCaptured("n", hint="h"), "nothing-captured", 2),
    (KeyboardInterrupt(), "interrupted", 130),
    (Interrupted("i"), "interrupted", 130),
    (ExceptionGroup("g", [RuntimeError("r"), NothingCaptured("n")]), "nothing-captured", 2),
    (BaseExceptionGroup("g", [RuntimeError("r"), BaseExceptionGroup("h", [KeyboardInterrupt()])]), "interrupted", 130),
]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(("error", "slug", "code"), RAISED, ids=[f"{type(error).__name__}-{slug}" for error, slug, _ in RAISED])
def test_every_exception_becomes_an_exit_code_and_one_object(monkeypatch, capsys, error, slug, code):
    def dispatch(words):
        raise error

    monkeypatch.setattr(app, "dispatch", dispatch)
    assert main(["compare", "--json"]) == code
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (answer["schema"], answer["verdict"], answer["error"]["slug"]) == (1, None, slug)
    assert answer["error"]["text"]
    assert answer["error"]["fix"]
    assert f"[{slug}]" in captured.err


class Interrupting(io.StringIO):
    """A stream that is interrupted right after it took a text; ``times`` times."""

    def __init__(self, number, times=1):
        super().__init__()
        self.number, self.times = number, times

    def flush(self):
        if self.times:
            self.times -= 1
            os.kill(os.getpid(), self.number)


def dispatch_fails(words):
    raise NothingCaptured("n", hint="h")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("dispatch", [lambda words: Outcome('{"verdict": "diverged"}', verdict="diverged"), dispatch_fails])
def test_an_interrupt_while_the_object_goes_out_adds_no_second_one(monkeypatch, dispatch, number):
    out = Interrupting(number)
    monkeypatch.setattr(app, "dispatch", dispatch)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["compare", "--json"]) == 130
    assert len(out.getvalue().splitlines()) == 1
    assert json.loads(out.getvalue())


def test_an_interrupt_while_an_error_is_told_still_leaves_one_object(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(app, "dispatch", dispatch_fails)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Interrupting(signal.SIGINT))
    assert main(["compare", "--json"]) == 130
    assert json.loads(out.getvalue())["error"]["slug"] == "interrupted"


def test_without_json_standard_output_stays_empty(monkeypatch, capsys):
    def dispatch(words):
        raise RuntimeError("r")

    monkeypatch.setattr(app, "dispatch", dispatch)
    assert main(["compare", "--", "python", "x.py", "--json"]) == 2  # that --json is the program's
    assert capsys.readouterr().out == ""


def test_an_internal_error_keeps_its_traceback_and_says_where(monkeypatch, capsys, tmp_path):
    def dispatch(words):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(app, "dispatch", dispatch)
    assert main(["doctor"]) == 2
    path = tmp_path / "state" / "opguard" / "last-internal-error.txt"
    assert "ZeroDivisionError: planted" in path.read_text()
    assert str(path) in capsys.readouterr().err


def test_a_state_folder_that_cannot_be_written_does_not_hide_the_error(monkeypatch, capsys, tmp_path):
    (tmp_path / "state").write_text("a file")

    def dispatch(words):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(app, "dispatch", dispatch)
    assert main(["doctor"]) == 2
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


@pytest.mark.parametrize(("verdict", "code"), [("identical", 0), ("diverged", 1), ("inconclusive", 3)])
def test_a_delivered_verdict_is_the_exit_code(monkeypatch, capsys, verdict, code):
    monkeypatch.setattr(app, "dispatch", lambda words: Outcome("text", verdict=verdict))
    assert main([]) == code
    assert capsys.readouterr().out == "text\n"


@pytest.mark.parametrize(
    "words",
    [[], ["nope"], ["compare"], ["compare", "--suspect"], ["compare", "--wat", "--json"], ["call"], ["call", "list_runs", "{"], ["trace"]],
)
def test_a_command_line_that_does_not_parse_is_error_2(words, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    if "--json" in words or words[:1] == ["call"]:
        assert json.loads(captured.out)["error"]["slug"] in ("usage", "invalid-arguments")


def test_the_verdict_does_not_count_when_nobody_could_read_it(tmp_path):
    code = (
        "import sys; from opguard_harness.cli import app; from opguard_harness.cli.outcome import Outcome\n"
        "app.dispatch = lambda words: Outcome('x' * 100_000, verdict='diverged')\n"
        "from opguard_harness.__main__ import main; sys.exit(main(['compare', '--json']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 2
    assert "[answer-undelivered]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_closed_streams_do_not_end_in_1(tmp_path):
    command = f"exec {sys.executable} -m opguard_harness compare >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 2


def test_a_broken_installation_still_answers(tmp_path):
    broken = tmp_path / "opguard_core"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('half installed')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    command = [sys.executable, "-m", "opguard_harness", "compare", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["slug"] == "internal"


def test_an_ascii_locale_does_not_turn_a_verdict_into_an_error(tmp_path):
    code = (
        "import sys; from opguard_harness.cli import app; from opguard_harness.cli.outcome import Outcome\n"
        "app.dispatch = lambda words: Outcome('caf\\u00e9 \\udcff', verdict='diverged')\n"
        "from opguard_harness.__main__ import main; sys.exit(main(['compare']))"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "caf\\xe9 \\udcff\n")


def test_usage_errors_of_any_click_are_recognised():
    class Foreign(Exception):
        exit_code = 2

        def format_message(self):
            return "No such option: --x"

    assert as_opguard_error(Foreign()).as_dict()["slug"] == "usage"
