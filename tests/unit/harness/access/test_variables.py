"""Variables that a tool call may set for a program."""

import pytest

from opguard_harness.access.variables import MAX_BYTES, check_variables, module_folders
from opguard_harness.errors import InvalidArguments, VariableRefused

REFUSED = """LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT DYLD_INSERT_LIBRARIES PYTHONSTARTUP PYTHONHOME PYTHONINSPECT PYTHONBREAKPOINT
PYTHONSAFEPATH
PYTHONUSERBASE PYTHONPYCACHEPREFIX PYTHONPLATLIBDIR PYTHONEXECUTABLE PATH HOME BASH_ENV ENV
IFS SHELLOPTS OPGUARD_RUN OPGUARD_NONCE GIT_SSH_COMMAND GIT_DIR
GLIBC_TUNABLES GCONV_PATH CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN PET_NO_PYTHON PET_RUN_PATH CC CXX
PYTORCH_NVCC OMP_TOOL_LIBRARIES HSA_TOOLS_LIB FI_PROVIDER_PATH UCX_MODULE_DIR TRITON_LIBCUDA_PATH
PIP_INDEX_URL OPENSSL_CONF BASH_FUNC_ls""".split()
ACCEPTED = """HF_TOKEN WANDB_API_KEY MY_PASSWORD OMP_NUM_THREADS CUDA_VISIBLE_DEVICES CUBLAS_WORKSPACE_CONFIG NCCL_ALGO NODE_RANK
MASTER_PORT TOKENIZERS_PARALLELISM HF_HOME TORCH_LOGS PYTHONHASHSEED PYTHONUNBUFFERED PET_NPROC_PER_NODE LR SEED TMPDIR""".split()


def check(*pairs):
    check_variables(pairs, "env", lambda folder: folder == "ok")


@pytest.mark.parametrize("name", REFUSED)
def test_what_loads_or_redirects_is_refused(name):
    with pytest.raises(VariableRefused, match=name):
        check(f"{name}=x")


@pytest.mark.parametrize("name", ACCEPTED)
def test_settings_and_secrets_are_accepted(name):
    check(f"{name}=a value with = and spaces")


@pytest.mark.parametrize("pair", ["X", "=x", "A B=1", "A-B=1", "1A=1", "BASH_FUNC_x%%=() { :; }", "A\n=1", "\u00c4=1"])
def test_only_pairs_are_variables(pair):
    with pytest.raises(InvalidArguments):
        check(pair)


def test_a_giant_value_is_refused_in_our_words():
    with pytest.raises(InvalidArguments, match="longer than"):
        check("A=" + "x" * MAX_BYTES)


@pytest.mark.parametrize("value", ["ignore", "error,ignore::UserWarning", "always::DeprecationWarning:torch"])
def test_warning_filters_that_import_nothing_are_accepted(value):
    check(f"PYTHONWARNINGS={value}")


@pytest.mark.parametrize("value", ["all:0:antigravity.x:0:0", "error::mod.Class", "x"])
def test_warning_filters_that_import_are_refused(value):
    with pytest.raises(VariableRefused):
        check(f"PYTHONWARNINGS={value}")


def test_the_module_path_is_looked_at_entry_by_entry():
    check("PYTHONPATH=ok:ok")
    for value in ("ok:/tmp", "bad", "ok:"):
        with pytest.raises(VariableRefused, match="PYTHONPATH"):
            check(f"PYTHONPATH={value}")
    assert module_folders(["PYTHONPATH=a", "X=1", "PYTHONPATH=b::c"]) == ["b", "c"]
    assert module_folders(["X=1"]) == []
