"""Which variables a tool call may set for a program: settings, and secrets that it needs, but nothing that loads or redirects code.

The names come from the manuals of the loader, Python, shells, git, CUDA, Triton, OpenMP, NCCL and torchrun. It is a list of what
is known; a training is arbitrary code, and reads what it likes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from opguard_harness.access.untrusted import one_line
from opguard_harness.errors import InvalidArguments, VariableRefused

WARNING_FILTER = re.compile(r"(default|error|always|all|module|once|ignore)(:[^:,]*)?(:[A-Za-z]*)?(:[\w]*)?(:\d*)?")
"""One filter of -W or PYTHONWARNINGS; a category with a dot would import its module before the program starts."""
MAX_BYTES = 100_000  # of one pair: the system's own limit is a little higher, and says less

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PREFIXES = ("LD_", "DYLD_", "GIT_", "OPGUARD_", "BASH_FUNC_", "PIP_", "UV_", "OMPI_MCA_", "PERL5", "RUBY")
_ENDINGS = ("_PLUGIN", "_PLUGINS", "_PRELOAD", "_INJECTION32_PATH", "_INJECTION64_PATH")
_REFUSED = frozenset(
    "PATH HOME IFS ENV BASH_ENV BASHOPTS SHELLOPTS SHELL PS4 PROMPT_COMMAND CDPATH EDITOR VISUAL PAGER BROWSER GLIBC_TUNABLES "
    "GCONV_PATH LOCPATH NLSPATH HOSTALIASES LOCALDOMAIN RES_OPTIONS OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES SSLKEYLOGFILE "
    "SSH_ASKPASS SUDO_ASKPASS JAVA_TOOL_OPTIONS _JAVA_OPTIONS NODE_OPTIONS NODE_PATH CC CXX CPP LD AR NVCC CUDAHOSTCXX NVCC_CCBIN "
    "NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS CFLAGS CXXFLAGS CPPFLAGS LDFLAGS TRITON_PTXAS_PATH TRITON_CUOBJDUMP_PATH "
    "TRITON_NVDISASM_PATH TRITON_LIBCUDA_PATH PYTORCH_NVCC OMP_TOOL_LIBRARIES HSA_TOOLS_LIB FI_PROVIDER_PATH UCX_MODULE_DIR "
    "NCCL_CONF_FILE VIRTUAL_ENV CONDA_PREFIX XDG_STATE_HOME XDG_CACHE_HOME XDG_CONFIG_HOME PET_NO_PYTHON "
    "PET_MODULE PET_RUN_PATH PET_LOGS_SPECS PET_LOG_DIR PET_EVENT_LOG_HANDLER".split()
)
_PYTHON_SETTINGS = frozenset(
    "PYTHONPATH PYTHONHASHSEED PYTHONUNBUFFERED PYTHONFAULTHANDLER PYTHONDONTWRITEBYTECODE PYTHONOPTIMIZE PYTHONUTF8 "
    "PYTHONIOENCODING PYTHONWARNINGS PYTHONMALLOC PYTHONNODEBUGRANGES PYTHONTRACEMALLOC PYTHONASYNCIODEBUG PYTHONDEVMODE "
    "PYTHONNOUSERSITE PYTHONINTMAXSTRDIGITS PYTHON_GIL PYTHON_CPU_COUNT PYTHONCOERCECLOCALE".split()
)


def check_variables(pairs: Sequence[str], what: str, allowed_folder: Callable[[str], bool]) -> None:
    """Refuse variables that would load code, redirect a program or reach into how it is observed.

    Args:
        pairs: ``NAME=VALUE`` each.
        what: What messages call the argument.
        allowed_folder: Whether an entry of PYTHONPATH lies where code may come from.

    Raises:
        InvalidArguments: One is no pair; its text is not repeated, for it may be a secret.
        VariableRefused: One is refused.
    """
    for number, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise InvalidArguments(f"{what}: entry {number} is not NAME=VALUE.", hint="Write each variable as NAME=VALUE.")
        if len(os.fsencode(pair)) > MAX_BYTES:
            raise InvalidArguments(f"{what}: {name[:80]} is longer than {MAX_BYTES} bytes.", hint="Put so much text into a file.")
        why = _why_not(name, value)
        if why:
            raise VariableRefused(f"{what}: {name[:80]} is refused: {why}.")
        if name == "PYTHONPATH":
            for entry in value.split(os.pathsep):
                if not allowed_folder(entry):
                    raise VariableRefused(f"{what}: PYTHONPATH: {one_line(entry, 80)!r} does not lie in a root.")


def module_folders(pairs: Sequence[str]) -> list[str]:
    """The entries of a PYTHONPATH among these pairs."""
    found = [pair.partition("=")[2] for pair in pairs if pair.startswith("PYTHONPATH=")]
    return [entry for entry in found[-1].split(os.pathsep) if entry] if found else []


def _why_not(name: str, value: str) -> str:
    """Why a variable is refused; empty if it is not."""
    if name.startswith("OPGUARD_"):
        return "it tells an observed program how it is observed"
    if name.startswith("PYTHON") and name not in _PYTHON_SETTINGS:
        return "it makes Python load or write something else"
    if name == "PYTHONWARNINGS" and not all(WARNING_FILTER.fullmatch(part.strip()) for part in value.split(",") if part):
        return "a warning category with a dot imports its module"
    if name in _REFUSED or name.startswith(_PREFIXES) or name.endswith(_ENDINGS):
        return "it can load code into a program, or start another one in its place"
    return ""
