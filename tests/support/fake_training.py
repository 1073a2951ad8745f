"""A stand-in for a training Python: answers the harness's probe, and "trains" by writing a synthetic trace.

    python = fake_python(tmp_path)
    folder = fake_program(tmp_path / "suspect", corrupt=True, exit=0)

What a program does is in ``fake.json`` of its folder, so that tests of the harness need no torch and no seconds. The
launcher's own behaviour is not imitated beyond what the harness sees: files, exit code, output.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FACTS = {
    "version": "3.11.7",
    "implementation": "CPython",
    "executable": "fake",
    "prefix": "fake",
    "platform": "fake",
    "packages": {"torch": "2.13.0", "numpy": "2.0.0", "pyarrow": "20.0.0", "orjson": "3.10.0"},
    "foreign": [],
}


def fake_python(folder: Path, **facts: Any) -> Path:
    """Make an executable that behaves like a training Python with these facts."""
    path = folder / "fake-python"
    script = (
        f"#!{sys.executable}\n"
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        f"from tests.support.fake_training import main\n"
        f"sys.exit(main(sys.argv[1:], { ({**FACTS, **facts})!r}))\n"
    )
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_program(folder: Path, **behaviour: Any) -> Path:
    """Make a program's folder.

    Args:
        folder: The folder, absent.
        **behaviour: ``corrupt`` (an operator of step 1 gives another value), ``stop`` (crash after that many events), ``exit``
            (code), ``signal`` (ends by it), ``hang`` (never ends), ``nothing`` (captures nothing), ``writes`` (a file it makes),
            ``waits`` (a named pipe that somebody has to open for writing before it goes on).
    """
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "fake.json").write_text(json.dumps(behaviour))
    return folder


def main(words: list[str], facts: dict[str, Any]) -> int:
    """What the executable does."""
    if words[0] == "-c" and "foreign_owners" in words[1]:
        print(json.dumps(facts))
        return 0
    assert words[0] == str(REPOSITORY / "opguard_core") and words[1] == "run", words
    options, argv = words[2 : words.index("--")], words[words.index("--") + 1 :]
    return train(Path(options[options.index("--out") + 1]), options, argv)


def train(out: Path, options: list[str], argv: list[str]) -> int:
    """Behave as ``fake.json`` says, leaving a trace."""
    behaviour = json.loads(Path("fake.json").read_text())
    print("argv:", *argv)
    for name in ("MASTER_PORT", *behaviour.get("show", [])):
        print(f"{name}={os.environ.get(name)}")
    if behaviour.get("writes"):
        with Path(behaviour["writes"]).open("a") as stream:
            stream.write("a line\n")
    if behaviour.get("nothing"):
        print("ModuleNotFoundError: No module named 'numppy'", file=sys.stderr)
        print("opguard: The program 'train.py' never imported torch. Check it. [nothing-captured]", file=sys.stderr)
        return 2
    if behaviour.get("waits"):
        Path(behaviour["waits"]).read_bytes()
    code = int(behaviour.get("exit", 0))
    number = behaviour.get("signal")
    write_trace(out, behaviour, mode=options[options.index("--mode") + 1], argv=argv, code=None if number else code, number=number)
    if behaviour.get("hang"):
        print("hanging", flush=True)
        signal.pause()
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code


def write_trace(out: Path, behaviour: dict[str, Any], *, mode: str, argv: list[str], code: int | None, number: int | None) -> None:
    """Write the synthetic trace of one run."""
    from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run

    program = gpt(GptShape(layers=1, steps=3))
    edits = [Corrupt(program.find(1, operator="aten.gelu.default")[0])] if behaviour.get("corrupt") else []
    options: dict[str, Any] = {"stop": behaviour["stop"]} if "stop" in behaviour else {}
    if "contract" in behaviour:
        options["contract"] = behaviour["contract"]
    facts = {"argv": argv, "cwd": str(Path.cwd()), "user_root": str(Path.cwd()), "exit": {"code": code, "signal": number}}
    write_run(out, Side(program, edits), mode=mode, manifest=facts, **options)
