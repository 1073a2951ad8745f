"""What each fact of a contract means for comparing two runs: a table of key patterns, first match wins.

Severities:
    arithmetic   the same program computes other bits on the devices it uses
    order        the same values are added, or iterated over, in another order; bits may differ
    environment  nothing known follows for the bits; worth seeing when they do differ
    cosmetic     differs between any two runs, or is what the comparison is about
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import lru_cache

SEVERITIES = ("arithmetic", "order", "environment", "cosmetic")


@dataclass(frozen=True)
class Rule:
    """What it means that two runs have different values of a fact.

    Attributes:
        pattern: Keys it is for, shell style.
        severity: One of ``SEVERITIES``.
        why: What follows.
        shown: Every event shows what follows (dtypes, operators, batches), so the traces decide and a verdict need not be held back.
        absent: Severity where only one run has the fact; empty for the same.
    """

    pattern: str
    severity: str
    why: str
    shown: bool = False
    absent: str = ""


LATE_MARK = "late"  # present once the late facts were read: at the first optimizer step or at the end
RULES = (
    # software
    Rule("python.version", "environment", "the interpreter does not do the arithmetic"),
    Rule("python.implementation", "environment", "the interpreter does not do the arithmetic"),
    Rule("python.executable", "cosmetic", "a path"),
    Rule("python.flags", "environment", "assertions and hashing may differ"),
    Rule("torch.version", "arithmetic", "other kernels"),
    Rule("torch.git", "arithmetic", "other kernels"),
    Rule("torch.build", "arithmetic", "other compiler flags or math libraries"),
    Rule("torch.*", "arithmetic", "another GPU library brings other kernels"),
    Rule("package.triton", "arithmetic", "it compiles kernels"),
    Rule("package.apex", "arithmetic", "it brings kernels"),
    Rule("package.flash-attn", "arithmetic", "it brings kernels"),
    Rule("package.liger-kernel", "arithmetic", "it brings kernels"),
    Rule("package.transformer-engine", "arithmetic", "it brings kernels"),
    Rule("package.xformers", "arithmetic", "it brings kernels"),
    Rule("package.bitsandbytes", "arithmetic", "it brings kernels"),
    Rule("package.torchao", "arithmetic", "it brings kernels"),
    Rule("package.*", "environment", "Python code whose operators are in the trace"),
    # machine
    Rule("platform.machine", "arithmetic", "another instruction set"),
    Rule("platform.*", "environment", "the operating system does not do the arithmetic"),
    Rule("cpu.capability", "arithmetic", "kernels for another vector width add in other groups"),
    Rule("cpu.model", "environment", "math libraries pick kernels by processor; cpu.capability covers torch's own"),
    Rule("cpu.count", "environment", "matters through the number of threads"),
    Rule("device.name", "arithmetic", "kernels are chosen by device"),
    Rule("device.capability", "arithmetic", "kernels are chosen by device"),
    Rule("device.multiprocessors", "order", "sums are split over the multiprocessors"),
    Rule("device.driver", "environment", "it compiles intermediate code to kernels in rare cases"),
    Rule("device.driver_api", "environment", "what the driver offers; kernels come with the libraries"),
    Rule("device.firmware", "environment", "the card's own software does not choose kernels"),
    Rule("device.memory_bytes", "environment", "libraries may take less scratch space on a smaller card"),
    Rule("device.memory_bytes_per_s", "environment", "how fast the memory is; it computes the same"),
    Rule("device.count", "environment", "cards that a process sees; device.name says what it uses"),
    Rule("device.ecc.mode", "environment", "without correction a fault in the card's memory changes bits unnoticed"),
    Rule("device.ecc.*", "environment", "errors of the card's memory; uncorrected ones can change bits"),
    Rule("device.mig", "environment", "a part of a card has fewer multiprocessors; device.multiprocessors says how many"),
    Rule("device.compute_mode", "environment", "who may use the card; it computes the same"),
    Rule("device.pci", "cosmetic", "where the card is plugged in"),
    Rule("device.uuid", "cosmetic", "another card of the same kind"),
    # how it was run
    Rule("transplant", "arithmetic", "it has bytes of another run, so it is no run of its program alone", shown=True),
    Rule("run.world_size", "arithmetic", "each rank has another share of the batch, and gradients are summed over other parts"),
    Rule("run.deterministic", "arithmetic", "deterministic kernels are other kernels"),
    Rule("run.observer", "environment", "both engines tell the same events; what they cost differs", absent="cosmetic"),
    Rule("run.local_world_size", "environment", "ranks are spread over other machines"),
    Rule("run.argv", "environment", "the program decides what its arguments mean"),
    Rule("threads.intraop", "order", "sums are split among the threads, so partial sums meet in another order"),
    Rule("threads.interop", "environment", "operators run side by side; each computes the same"),
    Rule("knobs.*", "arithmetic", "deterministic kernels are other kernels"),
    # environment variables
    Rule("env.at_step", "cosmetic", "the same variables later; each is listed on its own"),
    Rule("env.PYTHONHASHSEED", "order", "sets of strings iterate in another order"),
    Rule("env.ATEN_CPU_CAPABILITY", "arithmetic", "chooses the vector width of kernels"),
    Rule("env.MKL_CBWR", "arithmetic", "chooses MKL's code path"),
    Rule("env.MKL_ENABLE_INSTRUCTIONS", "arithmetic", "chooses MKL's code path"),
    Rule("env.OPENBLAS_CORETYPE", "arithmetic", "chooses OpenBLAS's kernels"),
    Rule("env.DNNL_*", "arithmetic", "chooses oneDNN's kernels"),
    Rule("env.ONEDNN_*", "arithmetic", "chooses oneDNN's kernels"),
    Rule("env.CUBLAS_WORKSPACE_CONFIG", "order", "chooses how cuBLAS splits sums"),
    Rule("env.CUBLASLT_WORKSPACE_SIZE", "order", "chooses how cuBLASLt splits sums"),
    Rule("env.TORCH_CUBLASLT_UNIFIED_WORKSPACE", "order", "chooses how cuBLASLt splits sums"),
    Rule("env.CUBLAS*_LOG*", "cosmetic", "logging"),
    Rule("env.CUDNN_LOG*", "cosmetic", "logging"),
    Rule("env.CUBLAS_EMUL*", "arithmetic", "products are put together from others of lower precision"),
    Rule("env.DISABLE_ADDMM_CUDA_LT", "arithmetic", "chooses between cuBLAS and cuBLASLt for products with a bias"),
    Rule("env.TORCH_BLAS_PREFER_*", "arithmetic", "chooses the library of matrix products"),
    Rule("env.TORCH_LINALG_PREFER_*", "arithmetic", "chooses the library of linear algebra"),
    Rule("env.TORCH_CUDNN_*", "arithmetic", "chooses cuDNN's kernels"),
    Rule("env.NVIDIA_TF32_OVERRIDE", "arithmetic", "changes the precision of products"),
    Rule("env.TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "arithmetic", "changes the precision of products"),
    Rule("env.NVTE_*", "arithmetic", "chooses kernels"),
    Rule("env.NCCL_ALGO", "order", "the order in which ranks' values are added"),
    Rule("env.NCCL_PROTO", "order", "how messages are cut into pieces"),
    Rule("env.NCCL_NTHREADS", "order", "how messages are cut into pieces"),
    Rule("env.NCCL_M*_NCHANNELS", "order", "how messages are cut into pieces"),
    Rule("env.NCCL_M*_CTAS", "order", "how messages are cut into pieces"),
    Rule("env.NCCL_BUFFSIZE", "order", "how messages are cut into pieces"),
    Rule("env.NCCL_NVLS*", "order", "whether the switch adds the ranks' values"),
    Rule("env.NCCL_COLLNET_ENABLE", "order", "whether the network adds the ranks' values"),
    Rule("env.NCCL_TUNER_*", "order", "chooses algorithm and protocol by message"),
    Rule("env.NCCL_SYM*", "order", "whether other kernels add the ranks' values"),
    Rule("env.NCCL_WIN_ENABLE", "order", "whether other kernels add the ranks' values"),
    Rule("env.NCCL_TOPO_FILE", "order", "another topology, other rings and trees"),
    Rule("env.NCCL_GRAPH_FILE", "order", "other rings and trees"),
    Rule("env.NCCL_P2P_*", "order", "another path between the cards, and so other rings and trees"),
    Rule("env.NCCL_SHM_DISABLE", "order", "another path between the cards, and so other rings and trees"),
    Rule("env.NCCL_IB_DISABLE", "order", "another path between the machines, and so other rings and trees"),
    Rule("env.NCCL_CROSS_NIC", "order", "another path between the machines, and so other rings and trees"),
    Rule("env.NCCL_DEBUG*", "cosmetic", "logging"),
    Rule("env.TORCH_LOGS", "cosmetic", "logging"),
    Rule("env.TORCH_SHOW_CPP_STACKTRACES", "cosmetic", "logging"),
    Rule("env.*_NUM_THREADS", "order", "sums are split among the threads"),
    Rule("env.CUDA_LAUNCH_BLOCKING", "environment", "each launch waits for the one before, which hides races"),
    Rule("env.PYTORCH_*ALLOC_CONF", "environment", "other addresses; what was never written reads otherwise"),
    Rule("env.CUDA_VISIBLE_DEVICES", "environment", "another card; device.* says whether of the same kind"),
    Rule("env.*", "environment", "may change how libraries work"),
    # what the program set
    Rule("flags.fill_uninitialized_memory", "environment", "unwritten memory is compared by shape only"),
    Rule("flags.deterministic_warn_only", "environment", "only decides between a warning and an error"),
    Rule("flags.cuda.workspace", "order", "chooses how cuBLAS splits sums"),
    Rule("flags.cuda.sm_carveout", "order", "products are spread over fewer multiprocessors"),
    Rule("flags.cudnn.benchmark", "order", "the algorithm is chosen by timing"),
    Rule("flags.default_device", "arithmetic", "tensors are made on another device, whose kernels are others", shown=True),
    Rule("flags.default_dtype", "arithmetic", "tensors are made in another precision", shown=True),
    Rule("flags.autocast.*", "environment", "the state outside of regions; forward.autocast says what the model ran under"),
    Rule("flags.sdpa.*", "arithmetic", "chooses the attention kernel", shown=True),
    Rule("flags.*", "arithmetic", "chooses kernels or precision that no event shows"),
    Rule("forward.autocast", "arithmetic", "operators of the forward run in another precision", shown=True, absent="environment"),
    Rule("forward.autocast_cache", "environment", "weights are cast once or each time, to the same bits"),
    Rule("forward.default_dtype", "arithmetic", "tensors are made in another precision", shown=True, absent="environment"),
    Rule("forward.sdpa", "arithmetic", "chooses the attention kernel", shown=True, absent="environment"),
    Rule("forward.*", "arithmetic", "chooses kernels or precision that no event shows", absent="environment"),
    Rule("autocast.ran", "arithmetic", "parts of the model run in another precision", shown=True, absent="environment"),
    Rule("dtype.*", "arithmetic", "parameters or gradients have another precision", shown=True, absent="environment"),
    Rule("compile.used", "order", "compiled code fuses and reorders"),
    Rule("compile.declared", "order", "compiled code fuses and reorders"),
    Rule("compile.level", "arithmetic", "regions of one side ran as other code than those of the other", absent="environment"),
    Rule("compile.code", "arithmetic", "regions were compiled to other graphs or other code", shown=True, absent="environment"),
    Rule("compile.inductor", "order", "the compiler fuses, splits sums or rounds in between differently", absent="environment"),
    Rule("extension.code", "arithmetic", "observed functions come from other binaries", shown=True, absent="environment"),
    # several ranks
    Rule("dist.backend", "order", "another library adds the ranks' values"),
    Rule("dist.world_size", "arithmetic", "each rank has another share of the batch, and gradients are summed over other parts"),
    Rule("ddp.bucket_bytes", "order", "gradients are summed over the ranks in other messages"),
    Rule("ddp.*", "environment", "when and where gradients are summed; the sums are the same"),
    # random numbers
    Rule("seed.torch", "arithmetic", "other random numbers", shown=True),
    Rule("rng.step.*", "environment", "one side drew more, or was seeded otherwise; what the draws are used for is in the events"),
    Rule("rng.drawn", "environment", "whether the default generator was used"),
    # data and checkpoints
    Rule("loader.*.exists", "environment", "only one side makes it; loaders are numbered in the order of their first use"),
    Rule("load.*.exists", "environment", "only one side loads it; loads are numbered in their order"),
    Rule("checkpoint.*.exists", "environment", "only one side reads it; files are numbered in the order of reading"),
    Rule("loader.*.batch_size", "arithmetic", "each update sees other rows", shown=True, absent="environment"),
    Rule("loader.*.drop_last", "order", "the last batch of an epoch differs", absent="environment"),
    Rule("loader.*.num_workers", "order", "random numbers of an augmentation are drawn by other workers", absent="environment"),
    Rule("loader.*.generator", "order", "rows come in another order, and workers have other seeds", absent="environment"),
    Rule("loader.*.in_order", "order", "batches may come as workers finish", absent="environment"),
    Rule("loader.*.worker_init_fn", "order", "random numbers of an augmentation may be seeded otherwise", absent="environment"),
    Rule("loader.*.shuffle", "order", "rows come in another order", absent="environment"),
    Rule("loader.*.sampler*", "order", "rows come in another order", absent="environment"),
    Rule("loader.*", "environment", "how batches are fetched"),
    Rule("checkpoint.*.digest", "environment", "another file; load.* says whether its tensors differ"),
    Rule("checkpoint.*", "cosmetic", "a name or a size"),
    Rule("load.*.digest", "arithmetic", "other weights or optimizer state were loaded", shown=True, absent="environment"),
    Rule("load.*.tensors", "arithmetic", "one side loads state that the other does not", shown=True, absent="environment"),
    Rule("load.*.parts", "arithmetic", "these tensors, by name, are on one side only or hold other bits", shown=True, absent="environment"),
    Rule("load.*", "environment", "what was loaded into what"),
    Rule("start.*", "cosmetic", "random state before the program seeded it; unseeded generators differ in any two runs"),
    Rule("source.*", "cosmetic", "the sources of the two sides are what is being compared"),
    Rule(LATE_MARK, "cosmetic", "when late facts were read"),
)
# What a run that was killed early lacks, which says nothing about it.
LATE_KEYS = (
    "flags.*",
    "threads.*",
    "seed.*",
    "compile.*",
    "extension.*",
    "device.*",
    "cpu.capability",
    "torch.build",
    "torch.cudnn",
    "torch.nccl",
    "torch.cuda_runtime",
    "env.at_step",
    "forward.*",
    "autocast.*",
    "dtype.*",
    "dist.*",
    "ddp.*",
    "rng.*",
    "loader.*",
    "checkpoint.*",
    "load.*",
)
ACCELERATOR_FACTS = "device."  # prefix of the facts a contract has once an accelerator was used
ACCELERATOR_ONLY = (
    "flags.cudnn.*",
    "flags.cuda.*",
    "flags.fp32_precision.cuda.*",
    "flags.fp32_precision.cudnn.*",
    "flags.sdpa.mem_efficient",
    "flags.sdpa.cudnn",
    "flags.sdpa.fa3",
    "env.CUBLAS*",
    "env.CUDNN_*",
    "env.DISABLE_ADDMM_CUDA_LT",
    "env.NCCL_*",
    "env.NVIDIA_*",
    "env.NVTE_*",
    "env.TORCH_ALLOW_TF32_*",
    "env.TORCH_BLAS_PREFER_*",
    "env.TORCH_CUBLASLT_*",
    "env.TORCH_CUDNN_*",
    "env.TORCH_LINALG_PREFER_*",
)
UNKNOWN_KEY = Rule("*", "environment", "a fact this release does not know")


@lru_cache(maxsize=1024)
def rule_of(key: str) -> Rule:
    """The rule for one contract key."""
    return next((rule for rule in RULES if fnmatch.fnmatchcase(key, rule.pattern)), UNKNOWN_KEY)


def is_accelerators(key: str) -> bool:
    """Whether a setting changes nothing on a run that used no accelerator."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in ACCELERATOR_ONLY)


def is_late(key: str) -> bool:
    """Whether a contract has this key only after its late facts were read."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in LATE_KEYS)
