"""Which command lines a tool may start: a table of what is refused, and what goes through."""

import sys

import pytest

from opguard_harness.access.commands import allowed, check_command
from opguard_harness.access.launchers import ACCELERATE, TORCHRUN
from opguard_harness.errors import CommandRefused, UsageError


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "root"
    (root / "pkg").mkdir(parents=True)
    for name in ("train.py", "pkg/__init__.py", "pkg/train.py", "http.py"):
        (root / name).write_text("")
    (tmp_path / "outside.py").write_text("")
    (root / "away.py").symlink_to(tmp_path / "outside.py")
    return root


def check(project, words, commands=("python", "python3", "torchrun", "accelerate"), folders=None):
    check_command(words, commands=commands, folders=folders or [project], inside=lambda path: project in path.parents or path == project)


GOOD = [
    "python train.py",
    "python3 -u -O train.py --anything -c x -",
    "python -W ignore -X faulthandler train.py",
    "python -Wignore -Xdev train.py",
    "python -W ignore::UserWarning train.py",
    "python -- train.py",
    "python -m pkg.train --c -c",
    "python -mpkg.train",
    "python ./pkg/../train.py",
    "torchrun --nproc-per-node 2 train.py",
    "torchrun --standalone --nproc_per_node=2 --tee 3 -r 1 train.py --no-python",
    "torchrun --unheard-of=7 train.py",
    "torchrun -m pkg.train",
    "torchrun --log-dir logs train.py",
    "torchrun --rdzv-endpoint=http://a/b train.py",
    "python -m torch.distributed.run --nproc-per-node=2 train.py",
    "accelerate launch --num_processes 2 --mixed_precision bf16 --cpu train.py",
    "accelerate launch -m pkg.train",
    "python -m accelerate.commands.launch --cpu train.py",
    "python -m accelerate.commands.accelerate_cli launch train.py",
]
BAD = [
    "python",
    "python -",
    "python -c print(1)",
    "python -cprint(1)",
    "python -uc print(1)",
    "python -i train.py",
    "python -ui train.py",
    "python --version",
    "python -P -m pkg.train",
    "python -X presite=evil train.py",
    "python -X pycache_prefix=/tmp train.py",
    "python -W error::os.evil train.py",
    "python -W",
    "python -m",
    "python -m pip install x",
    "python -m timeit 1",
    "python -m http.server",
    "python -m pkg.train;id",
    "python -m ../x",
    "python ../outside.py",
    "python away.py",
    "python /etc/passwd",
    "sh -c id",
    "bash train.py",
    "env python train.py",
    "/bin/sh train.py",
    "/usr/bin/env python train.py",
    "/usr/bin/python3 train.py",
    "./python train.py",
    "PYTHON train.py",
    "nice python train.py",
    "torchrun",
    "torchrun --no-python bash",
    "torchrun --no_python bash train.py",
    "torchrun --no-pyt bash",
    "torchrun --no-p=1 train.py",
    "torchrun --standalone",
    "torchrun --nproc-per-node",
    "torchrun --nproc-per-node --no-python train.py",
    "torchrun --unheard-of 7 train.py",
    "torchrun -z train.py",
    "torchrun -- ../outside.py",
    "torchrun --log-dir /etc/x train.py",
    "torchrun --log-dir=../../x train.py",
    "torchrun -m os",
    "torchrun --module pip",
    "torchrun away.py",
    "python -m torch.distributed.run --no-python sh",
    "python -m torch.distributed.run -m pip",
    "accelerate",
    "accelerate config",
    "accelerate test",
    "accelerate laun train.py",
    "accelerate --help launch train.py",
    "accelerate launch --no_python ls",
    "accelerate launch --vm x train.py",
    "accelerate launch --tpu-use-sudo train.py",
    "accelerate launch --deepspeed_hostfile=hosts train.py",
    "accelerate launch --config_file /etc/x.yaml train.py",
    "accelerate launch --unheard train.py",
    "python -m accelerate.commands.accelerate_cli env",
]


@pytest.mark.parametrize("line", GOOD)
def test_a_training_of_the_root_may_be_started(project, line):
    check(project, line.split())


@pytest.mark.parametrize("line", BAD)
def test_anything_else_is_refused(project, line):
    with pytest.raises(CommandRefused):
        check(project, line.split())


def test_a_standard_module_is_the_program_s_own_only_where_python_looks_first(project):
    check(project, ["python", "-m", "http"])
    with pytest.raises(CommandRefused):
        check_command(
            ["python", "-m", "json"], commands=("python",), folders=[project], inside=lambda path: True, module_folders=[project / "pkg"]
        )


def test_a_module_has_to_be_in_both_folders(project, tmp_path):
    other = project / "other"
    other.mkdir()
    with pytest.raises(CommandRefused, match=r"pkg\.train"):
        check(project, ["python", "-m", "pkg.train"], folders=[project, other])


def test_what_is_installed_in_a_root_is_no_program_of_it(project):
    packages = project / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "tool.py").write_text("")
    (project / ".venv" / "bin").mkdir()
    (project / ".venv" / "pyvenv.cfg").write_text("")
    (project / ".venv" / "bin" / "pip").write_text("")
    for script in (".venv/lib/site-packages/tool.py", ".venv/bin/pip"):
        with pytest.raises(CommandRefused, match="installed"):
            check(project, ["python", script])


def test_the_launcher_s_own_script_is_read_as_the_launcher(project):
    (project / "torchrun").write_text("")
    check(project, ["python", "torchrun", "train.py"])
    with pytest.raises(CommandRefused, match="no-python"):
        check(project, ["python", "torchrun", "--no-python", "sh"])


def test_the_list_has_the_interpreters_of_the_roots_and_what_was_added(project):
    bin_folder = project / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    commands = allowed([project], ["deepspeed"])
    assert str(bin_folder / "python") in commands
    assert commands[:4] == ("python", "python3", "torchrun", "accelerate")
    check(project, [str(bin_folder / "python"), "train.py"], commands)
    check(project, ["deepspeed", "--num_gpus", "1", "train.py"], commands)
    for words in (["deepspeed", "away.py"], [str(bin_folder / "python"), "-c", "1"]):
        with pytest.raises(CommandRefused):
            check(project, words, commands)


@pytest.mark.parametrize("program", ["bash", "/bin/sh", "env", "/usr/bin/env", "sudo"])
def test_a_shell_cannot_be_added(program):
    with pytest.raises(UsageError, match="anything"):
        allowed([], [program])


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE])
def test_no_option_is_of_two_kinds(launcher):
    assert not launcher.flags & launcher.valued
    assert not launcher.refused & (launcher.flags | launcher.valued)


def test_a_refusal_repeats_no_secret(project):
    with pytest.raises(CommandRefused) as caught:
        check(project, ["python", "--api-key=hunter2hunter2"])
    assert "hunter2" not in str(caught.value)
