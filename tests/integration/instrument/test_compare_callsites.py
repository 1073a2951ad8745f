# ruff: noqa: E402  (torch may be missing)
"""`compare --callsites auto` over a C extension with one line of it changed: the call is found, here in the main script."""

import json
import subprocess
import sys
import sysconfig

import pytest

torch = pytest.importorskip("torch")

from opguard_core.builds.compilers import find_compilers
from opguard_harness.__main__ import main

pytestmark = [pytest.mark.torch, pytest.mark.full]

EXTENSION = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *scale_(PyObject *self, PyObject *args) {
  PyObject *x;
  double factor;
  (void)self;
  if (!PyArg_ParseTuple(args, "Od", &x, &factor)) return NULL;
  PyObject *address = PyObject_CallMethod(x, "data_ptr", NULL), *numel = PyObject_CallMethod(x, "numel", NULL);
  if (!address || !numel) return NULL;
  float *at = (float *)PyLong_AsVoidPtr(address);
  Py_ssize_t n = PyLong_AsSsize_t(numel);
  for (Py_ssize_t i = 0; i < n; i++) at[i] *= (float)factor;
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"scale_", scale_, METH_VARARGS, "x *= factor"}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "my_ext", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_my_ext(void) { return PyModule_Create(&module); }
"""
FAULT = ("at[i] *= (float)factor;", "at[i] = at[i] * (float)factor + (i == 5 && factor > 0.6 ? 1e-3f : 0);")
LAYERS = """
import my_ext
import torch


class Scaled(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        my_ext.scale_(y.detach(), 0.5); z = y * 2
        return z
"""
TRAIN = """
import my_ext
import torch
from layers import Scaled

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), Scaled(16, 16), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    before, after = my_ext.scale_(
        model[0].bias.detach(), 0.75 + step), model[0].bias + 1
"""


def side(folder, source):
    folder.mkdir()
    (folder / "layers.py").write_text(LAYERS)
    (folder / "train.py").write_text(TRAIN)
    (folder.parent / f"{folder.name}.c").write_text(source)
    target = folder / f"my_ext{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    command = ["cc", "-O1", "-shared", "-fPIC", f"-I{include}", str(folder.parent / f"{folder.name}.c"), "-o", str(target)]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.skipif(not find_compilers(), reason="needs a C compiler")
@pytest.mark.timeout(400)
def test_a_fault_in_an_extension_is_found_at_its_call(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    reference = side(tmp_path / "a", EXTENSION)
    suspect = side(tmp_path / "b", EXTENSION.replace(FAULT[0], FAULT[1]))
    out = tmp_path / "out"
    words = ["compare", "--reference", reference, "--suspect", suspect, "--callsites", "auto", "--python", sys.executable]
    words += ["--out", out, "--json"]
    code = main([str(word) for word in words])
    answer = json.loads(capsys.readouterr().out)
    assert code == 1, answer
    found = answer["pivot"]
    assert (found["operator"], found["slot"]) == ("extension.my_ext.scale_", "mut.0")
    for name in ("reference", "suspect"):
        where = found[name]
        assert (where["file"], where["function"]) == ("train.py", "<module>")
        if sys.version_info >= (3, 11):
            assert " ".join(where["text"].split()) == "my_ext.scale_( model[0].bias.detach(), 0.75 + step)"
    manifest = json.loads((out / "reference" / "trace" / "rank-00000" / "manifest.json").read_text())
    modules = manifest["engines"]["callsites"]["modules"]
    assert modules["__main__"]["reason"] == modules["layers"]["reason"] == "rewritten"
    assert modules["my_ext"]["reason"].startswith("native extension")
    assert manifest["coverage"].get("gaps", {}) == {}
