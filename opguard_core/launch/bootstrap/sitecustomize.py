"""First code of ours in every Python process of an observed program; standard library only, and little of it.

The launcher puts this folder on PYTHONPATH, so ``site`` imports this file before the program starts. It takes itself off
the path, decides what the process is (rank, agent that starts ranks, worker, child), and in a process that may be a rank
waits until the program itself has imported torch; only then is ``opguard_core`` loaded, from beside this file. Whatever
the process is, the ``sitecustomize`` that would have run without us runs, once, and the module of that name is that one.

It acts only if the run folder of the environment is private, ours, and holds a plan with the environment's nonce.

Only modules that the interpreter has loaded by now may be imported before torch: any other would be found in
``sys.modules`` by a program that has a file of that name beside its script. Annotations are text, since any Python 3 among
the program's processes runs this file; those older than 3.10 are left alone.

What it cannot see: processes started with -I, -E or -S or with another PYTHONPATH, and embedded interpreters.
"""

import _thread
import os
import stat
import sys
import time

TYPE_CHECKING = False  # typing's own constant would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

ENV_RUN = "OPGUARD_RUN"
ENV_NONCE = "OPGUARD_NONCE"
ENV_INSIDE = "OPGUARD_INSIDE"  # "program:PID" or "rank:PID" of the nearest ancestor that may be, or is, captured
ENV_SHIM = "OPGUARD_SHIM_PATH"  # which part of LD_PRELOAD is ours
ENV_NAMES = (ENV_RUN, ENV_NONCE, ENV_INSIDE)
PLAN_NAME = "plan.json"
PROCESSES_NAME = "processes"
PLAN_LIMIT_BYTES = 16 << 20
FAILED_EXIT = 2

# Where launchers of distributed programs say which rank a process is: (rank, world size, rank on this host). A row holds
# only if both of its first two are whole numbers. Sources: torchrun, Open MPI mpirun(1), srun(1) (job steps only).
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
AGENT_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli")
AGENT_MODULES = (*_LAUNCHERS, "deepspeed.launcher.runner", "deepspeed.launcher.launch")
# How a worker's command line begins once the interpreter's options are gone: (kind, prefix of its value, reason).
WORKERS = (
    ("command", "from multiprocessing.resource_tracker import", "resource-tracker"),
    ("command", "from multiprocessing.semaphore_tracker import", "resource-tracker"),
    ("command", "from multiprocessing.forkserver import", "fork-server"),
    ("command", "from multiprocessing.spawn import", "multiprocessing-child"),
    ("module", "torch._inductor.compile_worker", "compile-worker"),
    ("module", "joblib.externals.loky", "worker-pool"),
    ("module", "loky", "worker-pool"),
)
_OPTIONS_WITH_VALUE = "WXQ"
_IGNORING = {"I": "isolated mode", "E": "PYTHONPATH is ignored", "S": "the site module is not imported"}


def command_line(argv: "Sequence[str]") -> "tuple[str, str, str]":
    """Take an interpreter's command line apart.

    Args:
        argv: ``sys.orig_argv``, or the same words before the interpreter has started.

    Returns:
        (kind, value, flags): kind is "module", "script", "command" or "stdin"; flags are the letters of the options
        without a value.
    """
    flags = ""
    index = 1
    while index < len(argv):
        word = argv[index]
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                index += 1
            index += 1
            if word == "--":
                break
            continue
        if word == "-" or not word.startswith("-"):
            break
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":
                value = word[place:] or (argv[index + 1] if index + 1 < len(argv) else "")
                return ("module" if letter == "m" else "command"), value, flags
            if letter in _OPTIONS_WITH_VALUE:
                index += not word[place:]
                break
            flags += letter
        index += 1
    if index >= len(argv) or argv[index] == "-":
        return "stdin", "", flags
    return "script", argv[index], flags


def ignoring_flags(flags: str) -> "list[str]":
    """Options among ``flags`` under which no bootstrap runs, as ``["-I (isolated mode)", ...]``."""
    return [f"-{letter} ({_IGNORING[letter]})" for letter in _IGNORING if letter in flags]


def declared_rank(environ: "Mapping[str, str]") -> "tuple[int, int, int] | None":
    """(rank, world size, local rank) that the environment gives this process, or None."""
    for rank_name, world_name, local_name in RANK_VARIABLES:
        rank, world = environ.get(rank_name, ""), environ.get(world_name, "")
        if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
            local = environ.get(local_name, "")
            return int(rank), int(world), int(local) if local.isdecimal() else int(rank)
    return None


def decide(argv: "Sequence[str]", environ: "Mapping[str, str]") -> "tuple[str, str]":
    """What this process is.

    Returns:
        (role, reason): role is "rank" (the environment says so), "program" (the single process, if it imports torch),
        "spawned" (a multiprocessing child or what forks them: a rank only if it joins a process group), "agent" (starts ranks) or "left"
        (left alone). The reason says why, as a short word.
    """
    kind, value, _ = command_line(argv)
    inside = environ.get(ENV_INSIDE, "").partition(":")[0]
    if kind == "script" and "/torch/_inductor/compile_worker/" in value.replace(os.sep, "/"):
        return "left", "compile-worker"
    for worker_kind, prefix, reason in WORKERS:
        if kind == worker_kind and value.startswith(prefix):
            if reason in ("multiprocessing-child", "fork-server") and inside == "program":
                return "spawned", reason
            return "left", reason
    if inside == "rank":
        return "left", "subprocess"
    name = os.path.basename(value)
    if (kind == "script" and name in AGENT_SCRIPTS) or (kind == "module" and value in AGENT_MODULES):
        return "agent", "agent"
    declared = declared_rank(environ)
    if inside == "program":
        if declared is not None and declared[1] > 1:
            return "rank", "declared-by-program"
        return "left", "subprocess"
    if declared is not None:
        return "rank", "declared"
    return "program", "single"


def trusted_plan(run: str, nonce: str) -> bytes:
    """The plan of ``run`` if that is a private folder of ours and the plan carries ``nonce``; else nothing."""
    if not run or len(nonce) < 32 or not hasattr(os, "geteuid"):
        return b""
    try:
        folder = os.lstat(run)
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
            return b""
        descriptor = os.open(os.path.join(run, PLAN_NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > PLAN_LIMIT_BYTES:
            return b""
        data = b""
        while len(data) < status.st_size:
            part = os.read(descriptor, 1 << 20)
            if not part:
                return b""  # shrank meanwhile
            data += part
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    # The launcher writes the nonce in just this form; reading JSON would import a module too early.
    return data if b'"nonce":"%s"' % nonce.encode() in data else b""


def write_record(run: str, facts: "dict[str, object]") -> bool:
    """Tell the launcher about this process, in a file of its own below ``run``; returns whether it could be written.

    ``facts`` are plain values, written as an ASCII Python literal, which needs no module. Later files of a process add to earlier ones.
    """
    name = f"{os.getpid()}-{os.urandom(4).hex()}.txt"
    try:
        descriptor = os.open(os.path.join(run, PROCESSES_NAME, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, ascii({**facts, "t_ns": time.monotonic_ns()}).encode())
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def without_folder(value: str, folder: str) -> "str | None":
    """A PYTHONPATH without the one entry ``folder``; None when nothing is left."""
    entries = value.split(os.pathsep)
    if folder in entries:
        entries.remove(folder)
    return os.pathsep.join(entries) if entries else None


def without_shim(environ: "MutableMapping[str, str]") -> str:
    """Take our part off LD_PRELOAD: this process has it, or is no rank; compilers and workers must not load it.

    Returns:
        Path of the shim that this process began with, "" if it did not.
    """
    shim = environ.pop(ENV_SHIM, "")
    preload = environ.get("LD_PRELOAD", "")
    if not shim or shim not in preload:
        return ""
    kept = [part for part in preload.replace(" ", ":").split(":") if part and part != shim]
    if kept:
        environ["LD_PRELOAD"] = ":".join(kept)
    else:
        del environ["LD_PRELOAD"]
    return shim


class TorchWatch:
    """A meta path finder that finds nothing itself: it learns when the body of ``torch`` has run to its end.

    The spec and the loader the others find are handed on as they are; the loader carries an own ``exec_module`` until it
    is used, which the import system calls in place of the class's.
    """

    def __init__(self, arrived: "Callable[[], None]") -> None:
        """Keep ``arrived``, to be called once, on the importing thread, right after torch's module body."""
        self._arrived: Callable[[], None] | None = arrived
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        """Let the finders behind this one find torch, and prepare its loader."""
        if name != "torch" or self._arrived is None:
            return None
        thread = _thread.get_ident()
        if thread in self._asking:  # a finder behind us asks the whole path again
            return None
        self._asking.add(thread)
        try:
            spec = self._ask_behind(name, path, target)
        finally:
            self._asking.discard(thread)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._prepare(spec.loader)
        return spec

    def _ask_behind(self, name: str, path: "Sequence[str] | None", target: "ModuleType | None") -> "ModuleSpec | None":
        finders: list[Any] = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _prepare(self, loader: "Any") -> None:
        try:
            if "exec_module" in vars(loader):
                return
            original = loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                if vars(loader).get("exec_module") is exec_module:
                    del loader.exec_module
                original(module)
                self.torch_arrived()

            # The import system strips its own frames from tracebacks and warnings by this name, and ours with them.
            exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            # A loader that takes no attributes (none of CPython's); seen as "never imported torch" by the launcher.
            return

    def torch_arrived(self) -> None:
        """Torch's body has run: leave the path and begin."""
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            return
        # Another thread may stand in the middle of the list; taking an entry out would make it skip a finder.
        if _thread._count() == 0 and self in sys.meta_path:
            sys.meta_path.remove(self)
        arrived()


def _load_opguard(folder: str) -> None:
    """Import ``opguard_core`` from the package that holds ``folder``, whatever else of that name the path has."""
    import importlib.util

    package = os.path.dirname(os.path.dirname(folder))
    known = sys.modules.get("opguard_core")
    if known is None:
        init = os.path.join(package, "__init__.py")
        spec = importlib.util.spec_from_file_location("opguard_core", init, submodule_search_locations=[package])
        assert spec is not None
        assert spec.loader is not None
        known = importlib.util.module_from_spec(spec)
        sys.modules["opguard_core"] = known
        spec.loader.exec_module(known)
    elif os.path.dirname(os.path.abspath(known.__file__ or "")) != package:
        raise ImportError(f"the program has imported another opguard_core, from {known.__file__}")


def rewrite_early(folder: str, run: str, kind: str, value: str) -> str:
    """Have calls of the main program rewritten, and of what it imports before torch; returns why not, "" if they are."""
    before = set(sys.modules)
    try:
        _load_opguard(folder)
        from opguard_core.instrument import early

        early.install(run, kind, value, before)
    except Exception as error:  # noqa: BLE001 - the edge of the tool: the program goes on as it is, the hook comes with torch
        return f"{type(error).__name__}: {error}"
    return ""


def begin(folder: str, run: str, role: str, facts: "dict[str, object]") -> None:
    """Start what this role asks for, torch being there."""
    if os.getpid() != facts["pid"]:  # forked before torch was imported
        ancestor = facts["pid"] if role == "program" else facts["ancestor"]
        role = "left" if role == "rank" else "spawned"
        facts = {**facts, "pid": os.getpid(), "ppid": os.getppid(), "reason": "forked-child", "ancestor": ancestor, "role": role}
        write_record(run, facts)
        if role == "left":
            return
    try:
        _load_opguard(folder)
        from opguard_core.launch import rank

        rank.begin(run, role, facts)
    except Exception as error:  # noqa: BLE001 - the edge of the tool in the user's process: every failure becomes a record and an end
        give_up(run, facts, error)


def give_up(run: str, facts: "dict[str, object]", error: Exception) -> None:
    """Capture could not start: end the process now, before its first step, rather than after hours without a trace."""
    import traceback

    told = error.as_dict() if hasattr(error, "as_dict") else {}
    slug, text = told.get("slug", "capture"), told.get("text", f"{type(error).__name__}: {error}")
    fix = told.get("fix", "Run `opguard-harness doctor` and report what it prints.")
    trace = "" if told else "".join(traceback.format_exception(type(error), error, error.__traceback__))
    write_record(run, {**facts, "state": "failed", "slug": slug, "text": text, "fix": fix, "traceback": trace})
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed or replaced by the program
    os._exit(FAILED_EXIT)


def activate(folder: str) -> None:
    """Do what this process's role asks for; see the module's text."""
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    run = os.environ.get(ENV_RUN, "")
    trusted = trusted_plan(run, os.environ.get(ENV_NONCE, "")) if sys.version_info >= (3, 10) else b""
    role, reason = decide(sys.orig_argv, os.environ) if trusted else ("left", "")
    if trusted:
        kind, value, _ = command_line(sys.orig_argv)
        facts = {"pid": os.getpid(), "ppid": os.getppid(), "argv0": value if kind in ("script", "module") else "-" + kind[0], "role": role}
        facts.update(reason=reason, state="started", python=sys.version.split()[0], executable=sys.executable)
        write_record(run, facts)
    shim = without_shim(os.environ) if role != "agent" else ""
    if role == "left":
        kept = without_folder(os.environ.get("PYTHONPATH", folder), folder)
        if kept is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = kept
        for name in ENV_NAMES:
            os.environ.pop(name, None)
    elif role != "agent":
        ancestor = os.environ.get(ENV_INSIDE, "")
        os.environ[ENV_INSIDE] = f"{'program' if role == 'program' else 'rank'}:{os.getpid()}"
        facts["shim"] = shim
        facts["ancestor"] = int(ancestor.partition(":")[2] or 0)  # pid
        facts["declared"] = declared_rank(os.environ) if role == "rank" else None
        if b'"callsites":["' in trusted:  # inside a text the quotation marks would be escaped
            facts["no_early_callsites"] = rewrite_early(folder, run, kind, value)
        watch = TorchWatch(lambda: begin(folder, run, role, facts))
        if "torch" in sys.modules:  # a .pth file was faster
            watch.torch_arrived()
        else:
            sys.meta_path.insert(0, watch)


def run_next() -> None:
    """Import the ``sitecustomize`` that stands behind ours, and leave ``sys.modules`` as if ours had never been."""
    sys.modules.pop("sitecustomize", None)
    # Without one this raises the same ImportError that the site module expects and ignores; the import system then
    # drops our module. With one, its module is what stays under the name.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


if __name__ == "sitecustomize":
    activate(os.path.dirname(__file__))
    run_next()
