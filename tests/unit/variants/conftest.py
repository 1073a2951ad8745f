import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("libcst")

from tests.unit.variants.programs import EDITED, FILES
from tests.variants.edits import EDITS
from tests.variants.program import Inapplicable, Program, tag

SEEDS = 3
# One process runs all programs, each as a fresh one: no module of the last is known, and its own folder is first on the path.
DRIVER = textwrap.dedent(
    """
    import contextlib, io, json, runpy, sys, traceback

    known, results = set(sys.modules), {}
    for folder in sys.stdin.read().split():
        for name in set(sys.modules) - known:
            del sys.modules[name]
        out = io.StringIO()
        sys.path.insert(0, folder)
        try:
            with contextlib.redirect_stdout(out):
                runpy.run_path(folder + "/train.py", run_name="__main__")
        except Exception:
            out.write(traceback.format_exc())
        sys.path.pop(0)
        results[folder] = out.getvalue().splitlines()
    print(json.dumps(results))
    """
)


def program():
    """The program of `programs`, numbered; its torch is left alone."""
    counter = iter(range(1, 10_000))
    return Program({name: tag(FILES[name], counter) for name in EDITED}, "train.py")


@pytest.fixture(scope="session")
def edited():
    """Per kind: edited programs of several seeds, those that could be edited."""
    made = {}
    for kind, edit in EDITS.items():
        made[kind] = []
        for seed in range(SEEDS):
            changed = program()
            try:
                edit(changed, np.random.default_rng(seed))
            except Inapplicable:
                continue
            made[kind].append(changed)
    return made


@pytest.fixture(scope="session")
def outputs(edited, tmp_path_factory):
    """What the program prints as it is ("") and after each edit, by kind."""
    root = tmp_path_factory.mktemp("variants")
    folders = {}
    for kind, programs in {"": [program()], **edited}.items():
        folders[kind] = []
        for number, changed in enumerate(programs):
            folder = root / f"{kind or 'plain'}-{number}"
            folder.mkdir()
            folders[kind].append(str(folder))
            for name, text in {**changed.written()[0], "torch.py": FILES["torch.py"]}.items():
                (folder / name).write_text(text)
    given = "\n".join(folder for names in folders.values() for folder in names)
    done = subprocess.run([sys.executable, "-B", "-c", DRIVER], input=given, capture_output=True, text=True, check=True, cwd=root)
    printed = json.loads(done.stdout)
    return {kind: [printed[folder] for folder in names] for kind, names in folders.items()}
