from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opguard_core import builds
from opguard_core.intercept import shim

FAKES = Path(__file__).parents[2] / "support" / "fake_launches"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Folder of the fakes, and the shim itself."""
    folder = tmp_path_factory.mktemp("fakes")
    script = folder / "driver.map"
    script.write_text("libcuda_test { global: *; };\n")
    compiler = ["cc", "-O1", "-shared", "-fPIC", "-Wall"]
    subprocess.run(
        [*compiler, str(FAKES / "driver.c"), "-o", str(folder / "libcuda.so.1"), f"-Wl,--version-script={script},-soname,libcuda.so.1"],
        check=True,
    )
    versions = folder / "runtime.map"
    versions.write_text("libcudart.so.13 { global: *; };\n")
    runtime = str(folder / "libcudart.so.13")
    subprocess.run(
        [*compiler, str(FAKES / "runtime.c"), "-o", runtime, f"-Wl,--version-script={versions},-soname,libcudart.so.13", "-ldl"], check=True
    )
    subprocess.run(
        [*compiler, str(FAKES / "linked.c"), "-o", str(folder / "liblinked.so"), runtime, f"-Wl,-rpath,{folder}", "-ldl", "-lm"], check=True
    )
    recipe = shim.recipe()
    assert isinstance(recipe, builds.Recipe)
    built = builds.obtain(recipe)
    assert isinstance(built, builds.Built), built
    return folder, built.path
