"""Facts about what the program makes: its loaders, its wrapped models, its optimizers. Reads attributes, calls nothing of the user's."""

from __future__ import annotations

from typing import Any

MAX_SAMPLERS = 4  # a batch sampler around a sampler around a sampler


def loader_facts(loader: Any) -> dict[str, object]:
    """What decides which rows come in which batch, and who draws the random numbers of an augmentation.

    Args:
        loader: A DataLoader.
    """
    context = loader.multiprocessing_context
    facts: dict[str, object] = {
        "batch_size": _plain(loader.batch_size),
        "dataset": type(loader.dataset).__name__,
        "drop_last": _plain(loader.drop_last),
        "generator": _seed(loader.generator),
        "in_order": _plain(getattr(loader, "in_order", True)),
        "multiprocessing_context": None if context is None else type(context).__name__,
        "num_workers": _plain(loader.num_workers),
        "persistent_workers": _plain(loader.persistent_workers),
        "pin_memory": _plain(loader.pin_memory),
        "prefetch_factor": _plain(loader.prefetch_factor),
        "worker_init_fn": loader.worker_init_fn is not None,
    }
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    names: list[str] = []
    settings: dict[str, object] = {}
    for _ in range(MAX_SAMPLERS):
        if sampler is None:
            break
        inside = getattr(sampler, "__dict__", {})
        if type(sampler).__module__ != "opguard_core.state.order":  # ours only counts what the one inside hands out
            names.append(type(sampler).__name__)
        for name in ("epoch", "seed", "shuffle", "num_replicas", "rank", "replacement", "batch_size", "drop_last"):
            if type(inside.get(name)) in (int, bool):
                settings.setdefault(name, inside[name])
        if "generator" in inside:
            settings.setdefault("generator", _seed(inside["generator"]))
        sampler = inside.get("sampler", inside.get("batch_sampler"))
    facts["sampler"] = names
    facts["shuffle"] = "RandomSampler" in names or bool(settings.get("shuffle"))
    facts.update(
        {f"sampler_{name}": value for name, value in sorted(settings.items()) if name not in ("batch_size", "drop_last", "shuffle")}
    )
    if loader.batch_size is None:
        facts.update({name: settings[name] for name in ("batch_size", "drop_last") if name in settings})
    return facts


def replica_facts(module: Any) -> dict[str, object]:
    """How a DistributedDataParallel cuts gradients into messages; empty for any other module."""
    if type(module).__name__ != "DistributedDataParallel":
        return {}
    inside = module.__dict__
    names = {
        "ddp.bucket_bytes": "bucket_bytes_cap",
        "ddp.gradient_as_bucket_view": "gradient_as_bucket_view",
        "ddp.find_unused_parameters": "find_unused_parameters",
        "ddp.static_graph": "static_graph",
    }
    return {key: _plain(inside.get(name)) for key, name in names.items()}


def dtype_facts(optimizer: Any) -> dict[str, object]:
    """Which types the parameters and the gradients of the first update have."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return {
        f"dtype.{name}": sorted({str(one.dtype) for one in found}) for name, found in (("parameters", parameters), ("gradients", gradients))
    }


def _seed(generator: Any) -> object:
    """What a generator was seeded with; the class name of one that does not tell."""
    if generator is None:
        return None
    seed = getattr(generator, "initial_seed", None)
    return f"seed {seed()}" if type(generator).__module__.startswith("torch") and callable(seed) else type(generator).__name__


def _plain(value: object) -> object:
    return value if value is None or type(value) in (bool, int, float, str) else type(value).__name__
