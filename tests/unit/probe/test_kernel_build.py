"""Kernels are compiled once per machine, card and variant; what cannot be compiled is a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opguard_core import builds
from opguard_core.probe import kernel_build, launch_recipe
from tests.support.fake_cuda import FakeCuda

pytestmark = pytest.mark.torch


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A compiler that notes what it is asked for."""
    asked = []

    def compile_for(arch, variant):
        asked.append((arch, variant))
        return f"{arch} {variant}".encode()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_build, "compile_for", compile_for)
    return asked


def test_each_variant_and_card_is_compiled_once(compiled):
    for _ in range(2):
        for arch in ("sm_90", "sm_100"):
            for variant in ("og_all", "og_mix"):
                assert kernel_build.cubin(arch, variant) == f"{arch} {variant}".encode()
    assert len(compiled) == len(set(compiled)) == 4


def test_another_source_or_compiler_is_another_cubin(compiled, monkeypatch):
    kernel_build.cubin("sm_90", "og_all")
    monkeypatch.setattr(kernel_build, "compiler", lambda: "another")
    kernel_build.cubin("sm_90", "og_all")
    monkeypatch.setattr(kernel_build, "_headers", lambda: (("device.cuh",), ("// changed",)))
    kernel_build.cubin("sm_90", "og_all")
    assert len(compiled) == 3


def test_a_source_holds_one_variant():
    for variant in kernel_build.VARIANTS:
        lines = [line for line in kernel_build._source(variant).splitlines() if line.startswith("FINGERPRINT(")]
        assert len(lines) == 1
        assert f"({variant}," in lines[0]


def test_what_does_not_compile_is_a_reason_and_is_not_kept(compiled, monkeypatch):
    def refuse(_arch, _variant):
        raise RuntimeError("NVRTC: no")

    monkeypatch.setattr(kernel_build, "compile_for", refuse)
    assert kernel_build.cubin("sm_90", "og_all") == builds.NotBuilt("NVRTC: no")
    monkeypatch.setattr(kernel_build, "compile_for", lambda *_: b"fine")
    assert kernel_build.cubin("sm_90", "og_all") == b"fine"


def test_the_flags_of_a_submit_name_the_variant():
    flags = (0, kernel_build.STATISTICS, kernel_build.NO_VALUE64, kernel_build.NO_ELEMENTS | kernel_build.STATISTICS)
    assert [kernel_build.variant_of(each) for each in flags] == ["og_all", "og_alls", "og_bag", "og_mixs"]


def test_a_launcher_compiles_for_the_cards_it_has_without_importing_torch(tmp_path, monkeypatch):
    fake = FakeCuda(tmp_path)
    fake.close()
    monkeypatch.setenv("OPGUARD_LIBCUDA", str(fake.path))
    assert kernel_build.architectures() == ["sm_11"]  # what the fake says
    loaded = "'torch' in sys.modules, 'cupy' in sys.modules"
    code = f"import sys; from opguard_core.probe import kernel_build; print(kernel_build.architectures(), {loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['sm_11'] False False\n"


def test_without_a_card_nothing_is_started(monkeypatch):
    monkeypatch.delenv("OPGUARD_LIBCUDA", raising=False)
    monkeypatch.setattr(launch_recipe, "_DRIVER_FILES", ())
    monkeypatch.setattr(kernel_build.subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    kernel_build.prepare()
    assert launch_recipe.recipe_if_needed() == builds.NotBuilt("no NVIDIA driver on this machine")
