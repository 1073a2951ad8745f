"""What a starting interpreter decides about itself, and how little of it a program can see. No torch: a stand-in is enough."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from opguard_core.launch.startup import FOLDER, bootstrap
from opguard_core.plan.orders import Orders

SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
TRACKER = "from multiprocessing.resource_tracker import main;main(6)"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["python", "train.py", "-I"], ("script", "train.py", "")),
        (["python", "-u", "-W", "error", "-Xdev", "train.py"], ("script", "train.py", "u")),
        (["python", "-Bum", "pkg.train", "-S"], ("module", "pkg.train", "Bu")),
        (["python", "-mpkg"], ("module", "pkg", "")),
        (["python", "-c", "print(1)", "-E"], ("command", "print(1)", "")),
        (["python", "-IS", "train.py"], ("script", "train.py", "IS")),
        (["python", "--check-hash-based-pycs", "always", "train.py"], ("script", "train.py", "")),
        (["python", "-"], ("stdin", "", "")),
        (["python"], ("stdin", "", "")),
    ],
)
def test_a_python_command_line_is_taken_apart(argv, expected):
    assert bootstrap.command_line(argv) == expected


@pytest.mark.parametrize("flags", ["I", "E", "S", "uE"])
def test_options_that_keep_the_bootstrap_from_running_are_named(flags):
    assert bootstrap.ignoring_flags(flags) == [told for told in bootstrap.ignoring_flags("IES") if told[1] in flags]
    assert bootstrap.ignoring_flags(flags)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, (1, 4, 0)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4, 1)),
        ({"RANK": "4", "WORLD_SIZE": "4"}, None),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({"RANK": "1"}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, (2, 3, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None),  # a batch script's own process is no task of a step
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}, (1, 2, 1)),
    ],
)
def test_the_environment_declares_a_rank_only_if_it_is_whole(environ, expected):
    assert bootstrap.declared_rank(environ) == expected


RANK = {"RANK": "1", "WORLD_SIZE": "2"}
IN_PROGRAM = {"OPGUARD_INSIDE": "program:7"}
IN_RANK = {"OPGUARD_INSIDE": "rank:7"}


@pytest.mark.parametrize(
    ("argv", "environ", "role"),
    [
        (["python", "train.py"], {}, "program"),
        (["python", "train.py"], RANK, "rank"),
        (["python", "/env/bin/torchrun", "train.py"], {}, "agent"),
        (["python", "/env/bin/accelerate", "launch", "train.py"], {}, "agent"),
        (["python", "-m", "torch.distributed.run", "train.py"], RANK, "agent"),
        (["python", "-m", "train"], IN_PROGRAM, "left"),
        (["python", "-m", "train"], {**IN_PROGRAM, **RANK}, "rank"),
        (["python", "-m", "train"], {**IN_PROGRAM, "RANK": "0", "WORLD_SIZE": "1"}, "left"),
        (["python", "-m", "train"], {**IN_RANK, **RANK}, "left"),
        (["python", "/env/bin/torchrun", "train.py"], IN_PROGRAM, "agent"),
        (["python", "/env/bin/torchrun", "train.py"], IN_RANK, "left"),
        (["python", "-c", SPAWN, "--multiprocessing-fork"], IN_PROGRAM, "spawned"),
        (["python", "-c", SPAWN, "--multiprocessing-fork"], {**IN_RANK, **RANK}, "left"),
        (["python", "-c", TRACKER], IN_PROGRAM, "left"),
        (["python", "-m", "torch._inductor.compile_worker"], IN_PROGRAM, "left"),
        (["python", "/x/torch/_inductor/compile_worker/__main__.py"], {}, "left"),
        (["python", "-m", "joblib.externals.loky.backend.popen_loky_posix"], {}, "left"),
    ],
)
def test_every_process_gets_its_role(argv, environ, role):
    assert bootstrap.decide(argv, environ)[0] == role


def test_the_bootstrap_folder_leaves_pythonpath_without_a_trace():
    assert bootstrap.without_folder("/boot", "/boot") is None
    assert bootstrap.without_folder("/boot:/a::/b", "/boot") == "/a::/b"
    assert bootstrap.without_folder("/a", "/boot") == "/a"


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    orders = Orders(argv=["python", "train.py"], user_root=str(tmp_path))
    (folder / "plan.json").write_bytes(orders.to_json())
    (folder / "processes").mkdir(mode=0o700)
    return folder, orders


def test_a_plan_is_trusted_only_in_a_private_folder_with_the_right_nonce(run_folder):
    folder, orders = run_folder
    assert bootstrap.trusted_plan(str(folder), orders.nonce)
    assert not bootstrap.trusted_plan(str(folder), "0" * 64)
    assert not bootstrap.trusted_plan(str(folder), "")
    assert not bootstrap.trusted_plan(str(folder / "absent"), orders.nonce)
    folder.chmod(0o750)
    assert not bootstrap.trusted_plan(str(folder), orders.nonce)


def test_a_linked_plan_is_not_trusted(run_folder):
    folder, orders = run_folder
    (folder / "plan.json").rename(folder / "other.json")
    (folder / "plan.json").symlink_to(folder / "other.json")
    assert not bootstrap.trusted_plan(str(folder), orders.nonce)


def _python(code, *, env, cwd, options=()):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPGUARD", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)], env={**clean, **env}, cwd=cwd, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


SEEN = """
import os, sys
print(sys.path, sorted(sys.path_importer_cache), sys.argv, sys.flags, sys.warnoptions)
print(sorted(set(sys.modules) - {"sitecustomize"}), getattr(sys.modules.get("sitecustomize"), "__file__", None))
print(sorted(name for name in os.environ if name.startswith(("OPGUARD", "PYTHON"))))
"""


@pytest.mark.parametrize("behind", [None, "print('next', __name__)", "import nothing_of_that_name", "1 / 0"])
def test_an_untrusted_process_sees_nothing_and_the_next_sitecustomize_runs_once(tmp_path, behind):
    path = []
    if behind is not None:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(behind)
        path = [str(tmp_path / "site")]
    bare = _python(SEEN, env={"PYTHONPATH": ":".join(path)} if path else {}, cwd=tmp_path)
    ours = _python(SEEN, env={"PYTHONPATH": ":".join([str(FOLDER), *path])}, cwd=tmp_path)
    assert ours == bare
    if behind is not None and "next" in behind:
        assert bare[1].count("next sitecustomize") == 1


def _observed(run_folder, path=()):
    folder, orders = run_folder
    return {"PYTHONPATH": ":".join([str(FOLDER), *path]), "OPGUARD_RUN": str(folder), "OPGUARD_NONCE": orders.nonce}


def test_a_child_of_a_rank_is_left_alone_and_cleaned(run_folder, tmp_path):
    bare = _python(SEEN, env={}, cwd=tmp_path)
    ours = _python(SEEN, env={**_observed(run_folder), "OPGUARD_INSIDE": "rank:1"}, cwd=tmp_path)
    assert ours == bare
    (record,) = (run_folder[0] / "processes").glob("*.txt")
    assert "'reason': 'subprocess'" in record.read_text()


WATCH = """
import sys
sys.path.insert(0, {folder!r})
from importlib import machinery, util
loaded = util.spec_from_file_location("boot", {boot!r})
boot = util.module_from_spec(loaded); loaded.loader.exec_module(boot)
arrived = []
watch = boot.TorchWatch(lambda: arrived.append(sys.modules["torch"].done))
sys.meta_path.insert(0, watch)
"""


def _watched(tmp_path, init, code):
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(init))
    (package / "part.py").write_text("import torch\nseen = hasattr(torch, 'done')\n")
    start = WATCH.format(folder=str(tmp_path / "fake"), boot=str(FOLDER / "sitecustomize.py"))
    return _python(start + textwrap.dedent(code), env={}, cwd=tmp_path)


def test_arrival_is_told_once_after_the_whole_body(tmp_path):
    code = """
        assert util.find_spec("torch").loader.__class__ is machinery.SourceFileLoader
        from torch import part
        import torch, importlib
        assert arrived == [True] and not part.seen, (arrived, part.seen)
        assert "exec_module" not in vars(torch.__loader__) and torch.__spec__.loader is torch.__loader__
        assert watch not in sys.meta_path
        importlib.reload(torch)
        assert arrived == [True]
    """
    assert _watched(tmp_path, "import torch.part\ndone = True\n", code) == (0, "", "")


def test_a_failing_import_leaves_no_frame_of_ours_and_can_be_tried_again(tmp_path):
    init = """
        import sys
        if "broken" in sys.argv:
            sys.argv.remove("broken")
            raise RuntimeError("no torch today")
        done = True
    """
    code = """
        import traceback
        sys.argv.append("broken")
        try:
            import torch
        except RuntimeError:
            print([frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(sys.exc_info()[2])])
        assert arrived == [] and "torch" not in sys.modules
        import torch
        print(arrived)
    """
    assert _watched(tmp_path, init, code) == (0, "['<string>', '__init__.py']\n[True]\n", "")


def test_a_warning_of_torch_points_where_it_would_without_us(tmp_path):
    init = "import warnings\nwarnings.warn('old', UserWarning, stacklevel=2)\ndone = True\n"
    code = "import torch\n"
    status, out, err = _watched(tmp_path, init, code)
    assert (status, out) == (0, "")
    assert "<string>:" in err


def test_finders_that_ask_the_whole_path_again_and_lazy_loaders_still_work(tmp_path):
    code = """
        class Chained:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if name != "torch" or self.busy:
                    return None
                self.busy = True
                spec = util.find_spec(name)
                self.busy = False
                print("chained", spec.name)
                return spec
        sys.meta_path.insert({place}, Chained())
        spec = util.find_spec("torch")
        spec.loader = util.LazyLoader(spec.loader)
        torch = util.module_from_spec(spec)
        sys.modules["torch"] = torch
        spec.loader.exec_module(torch)
        assert arrived == []
        torch.done
        assert arrived == [True]
    """
    for place in (0, 1):
        folder = tmp_path / str(place)
        folder.mkdir()
        assert _watched(folder, "done = True\n", code.replace("{place}", str(place))) == (0, "chained torch\n", "")


def test_the_bootstrap_imports_nothing_that_a_program_could_have_a_file_of(tmp_path):
    names = "import sys; print(sorted(sys.modules))"
    bare = set(eval(_python(names, env={}, cwd=tmp_path, options=["-S"])[1]))
    site = set(eval(_python(names, env={}, cwd=tmp_path)[1]))
    needed = {line.split()[1] for line in (FOLDER / "sitecustomize.py").read_text().splitlines() if line.startswith("import ")}
    assert needed <= bare | site
    assert all(name in sys.builtin_module_names or name in bare | {"os", "stat"} for name in needed)


def test_the_bootstrap_stands_alone_in_its_folder():
    assert [path.name for path in Path(FOLDER).iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]
