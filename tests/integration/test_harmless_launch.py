"""A program under observation does what it does alone: output, exit, tracebacks, random streams, folder, interpreter state."""

import pytest

from tests.support.harmless import both_ways, differences

pytestmark = pytest.mark.torch

TRAIN = """
    import random
    import sys
    import numpy
    import torch

    def train(seed=3, steps=2):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(steps):
            batch = torch.randn(3, 4) + torch.from_numpy(numpy.random.rand(3, 4)).float() * random.random()
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sys.stdout.write(f"{step} {loss.item().hex()}\\n")  # one write a line: torchrun's ranks share an unbuffered output
        return model
"""


def captured(observed, rank=0):
    """The rank's manifest, which must be whole."""
    manifest = observed.rank_manifest(rank)
    assert manifest["complete"]
    assert observed.said == []
    return manifest


def test_a_script_with_arguments(tmp_path):
    files = {
        "train.py": """
            import importlib.metadata, importlib.util, inspect, json, os, pathlib, sys, warnings
            warnings.warn("shown once")
            print(sys.argv, sys.path, __name__, __file__, __spec__, __package__, os.getcwd(), sys.modules["__main__"].__file__)
            print(type(importlib.util.find_spec("torch").loader), importlib.metadata.version("torch"))
            for again in range(2):
                warnings.warn("once in a loop", DeprecationWarning)
            import queue  # a file of this folder
            print(queue.mine)
            del sys.modules["queue"]
            sys.path.pop(0)
            import torch
            sys.path.insert(0, os.getcwd())
            for again in range(2):
                warnings.warn("shown once")
            from loop import train
            model = train()
            assert [frame.filename for frame in inspect.stack()] == [__file__]
            torch.save(model.state_dict(), "model.pt")
            pathlib.Path("log.json").write_text(json.dumps(sorted(os.listdir())))
            print(pathlib.Path("data.txt").read_text(), file=sys.stderr)
        """,
        "queue.py": "mine = True",
        "loop.py": TRAIN,
        "data.txt": "some data",
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py", "--lr", "0.1", "a b"])
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed) == []
    assert captured(observed)["ended"] == "exit"
    assert "model.pt" in observed.files
    assert bare.reports[0]["torch"]["seed"] == 3


@pytest.mark.full
def test_a_module_with_relative_imports_and_a_main_guard(tmp_path):
    files = {
        "pkg/__init__.py": "",
        "pkg/loop.py": TRAIN,
        "pkg/run/__init__.py": "print('imported', __name__)",
        "pkg/run/__main__.py": """
            import sys
            from ..loop import train
            from . import __name__ as parent
            print(parent, __name__, __package__, __spec__.name, sys.argv, sys.path)
            if __name__ == "__main__":
                train()
        """,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "-W", "error", "-u", "-m", "pkg.run", "x"])
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed) == []
    captured(observed)


@pytest.mark.full
def test_an_exception_and_its_traceback(tmp_path):
    files = {
        "train.py": """
            import torch
            from loop import train
            def outer():
                model = train(steps=1)
                try:
                    torch.load("absent.pt")
                except OSError as error:
                    raise ValueError("no checkpoint") from error
            outer()
        """,
        "loop.py": TRAIN,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == 1
    assert "No such file" in bare.stderr
    assert differences(bare, observed) == []
    assert captured(observed)["ended"] == "exception"


@pytest.mark.full
def test_an_error_inside_an_operator_and_in_backward(tmp_path):
    files = {
        "train.py": """
            import traceback
            import torch
            class Broken(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x * 2
                @staticmethod
                def backward(ctx, grad):
                    raise RuntimeError("broken backward")
            for attempt in (
                lambda: torch.ones(2, 3) @ torch.ones(2, 3),
                lambda: Broken.apply(torch.ones(2, requires_grad=True)).sum().backward(),
                lambda: torch.nn.Linear(2, 2)(torch.ones(1, 3)),
            ):
                try:
                    attempt()
                except RuntimeError:
                    traceback.print_exc()
            torch.optim.SGD([torch.ones(2)], lr=-1)
        """,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == 1
    assert bare.stderr.count("Traceback") == 4
    assert differences(bare, observed) == []


@pytest.mark.full
def test_sys_exit_with_a_code_and_a_daemon_thread(tmp_path):
    files = {
        "train.py": """
            import atexit, sys, threading
            import torch
            from loop import train
            atexit.register(print, "at exit")
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            train(steps=1)
            sys.exit(3)
        """,
        "loop.py": TRAIN,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == 3
    assert differences(bare, observed) == []
    assert captured(observed)["ended"] == "exit"


@pytest.mark.parametrize(
    ("last", "status", "ended"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", 143, "signal", id="SIGTERM"),
        pytest.param("signal.raise_signal(signal.SIGINT)", 130, "signal", id="Ctrl-C", marks=pytest.mark.full),
        pytest.param("os._exit(5)", 5, "exit", id="_exit", marks=pytest.mark.full),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", 137, "unknown", id="SIGKILL", marks=pytest.mark.full),
    ],
)
def test_a_hard_end(tmp_path, last, status, ended):
    files = {
        "train.py": f"""
            import os, signal, torch
            from loop import train
            train(steps=1)
            print(signal.getsignal(signal.SIGTERM), flush=True)
            {last}
            print("not reached", flush=True)
        """,
        "loop.py": TRAIN,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == status
    assert differences(bare, observed) == []
    manifest = observed.rank_manifest(0)
    assert (manifest["ended"], manifest["complete"]) == (ended, ended != "unknown")
    expected = {"code": None, "signal": status - 128} if status > 128 else {"code": status, "signal": None}
    assert observed.manifest["exit"] == expected


@pytest.mark.full
def test_a_program_with_a_sigterm_handler_of_its_own(tmp_path):
    files = {
        "train.py": """
            import os, signal, sys, torch
            def handler(number, frame):
                print("saving", number, previous, flush=True)
                sys.exit(7)
            previous = signal.signal(signal.SIGTERM, handler)
            if os.fork() == 0:
                os._exit(0)
            os.wait()
            os.kill(os.getpid(), signal.SIGTERM)
        """,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == 7
    assert differences(bare, observed) == []
    assert captured(observed)["ended"] == "exit"


@pytest.mark.full
def test_data_loader_workers_forked_and_spawned(tmp_path):
    files = {
        "train.py": """
            import torch
            from torch.utils.data import DataLoader, Dataset
            class Noise(Dataset):
                def __len__(self):
                    return 4
                def __getitem__(self, index):
                    return torch.randn(2) + index + torch.utils.data.get_worker_info().id
            def main():
                torch.manual_seed(1)
                for method in ("fork", "spawn"):
                    loader = DataLoader(Noise(), batch_size=1, shuffle=True, num_workers=2, multiprocessing_context=method)
                    for batch in loader:
                        print(method, [value.hex() for value in batch.flatten().tolist()])
            if __name__ == "__main__":
                main()
        """,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed) == []
    captured(observed)
    reasons = [entry["reason"] for entry in observed.manifest["left_alone"]]
    assert sorted(reasons) == ["dataloader-worker"] * 2 + ["multiprocessing-child"] * 2 + ["resource-tracker"]
    assert observed.manifest["gaps"] == []


@pytest.mark.full
def test_children_of_every_other_kind(tmp_path):
    files = {
        "train.py": """
            import multiprocessing, os, subprocess, sys
            import torch
            from loop import train
            def square(number):
                return number * number
            def main():
                child = "import sys, torch; from loop import train; train(); print(sys.path, sys.argv)"
                print(subprocess.run([sys.executable, "-c", child, "x"], capture_output=True, text=True, check=True).stdout)
                for method in ("fork", "spawn"):
                    with multiprocessing.get_context(method).Pool(1) as pool:
                        print(pool.map(square, [1, 2, 3]))
                if os.fork() == 0:
                    os._exit(9)
                print(os.wait()[1])
                train()
            if __name__ == "__main__":
                main()
        """,
        "loop.py": TRAIN,
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed) == []
    captured(observed)
    reasons = sorted(entry["reason"] for entry in observed.manifest["left_alone"])
    assert reasons == ["forked-child", "multiprocessing-child", "multiprocessing-child", "resource-tracker", "subprocess"]


def test_two_ranks_under_torchrun(tmp_path):
    files = {
        "train.py": """
            import sys
            import torch
            import torch.distributed as dist
            from loop import train
            dist.init_process_group("gloo")
            model = train(seed=dist.get_rank())
            total = torch.ones(2) * dist.get_rank()
            dist.all_reduce(total)
            sys.stdout.write(f"{total.tolist()} {sys.argv}\\n")
            dist.destroy_process_group()
        """,
        "loop.py": TRAIN,
    }
    bare, observed = both_ways(tmp_path, files, ["torchrun", "--nproc-per-node", "2", "train.py", "x"])
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed, ordered=False) == []
    assert [captured(observed, rank)["world_size"] for rank in (0, 1)] == [2, 2]
    assert [entry["reason"] for entry in observed.manifest["left_alone"]] == ["agent"]


@pytest.mark.full
def test_accelerate_launch(tmp_path):
    files = {
        "train.py": """
            from accelerate import Accelerator
            from loop import train
            print(Accelerator().device, train())
        """,
        "loop.py": TRAIN,
    }
    bare, observed = both_ways(tmp_path, files, ["accelerate", "launch", "--cpu", "train.py"])
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed) == []
    captured(observed)


@pytest.mark.full
def test_a_torch_that_cannot_be_imported(tmp_path):
    files = {
        "train.py": "import wrapper",
        "wrapper.py": "import torch",
        "torch/__init__.py": "import warnings\nwarnings.warn('old torch', stacklevel=2)\n1 / 0",
    }
    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert (bare.status, observed.status) == (1, 2)
    assert "ZeroDivisionError" in bare.stderr
    observed.status = bare.status
    assert differences(bare, observed, ignore=["meta_path"]) == []
    assert "[nothing-captured]" in observed.said[0]
