"""The layer contracts of pyproject.toml can fail: imports that must not be, planted in a copy, are each named."""

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Which module is made to import which; one from each package that runs inside a training, and the way back.
PLANTED = {
    "launch.launcher": "align.timeline",
    "capture.session": "certify.compare",
    "engines.rank": "align.timeline",
    "probe.tensor": "certify.compare",
    "determinism.facts": "evidence",
    "align.timeline": "probe.kinds",
    "certify.compare": "determinism.facts",
}


def test_training_code_and_offline_code_never_import_each_other(tmp_path):
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for package in ("opguard_core", "opguard_harness"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for importer, imported in PLANTED.items():
        with (tmp_path / "opguard_core" / f"{importer.replace('.', '/')}.py").open("a") as stream:
            stream.write(f"\n\ndef planted():\n    import opguard_core.{imported}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    direct = done.stdout.partition("never imports")[2]
    missing = [pair for pair in PLANTED.items() if "opguard_core.{} -> opguard_core.{} ".format(*pair) not in direct]
    assert not missing, done.stdout
