"""Comparing what two runs should share; the table of severities; knobs, redaction and source facts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_core.contract.compare import compare, compare_ranks
from opguard_core.contract.fitting import fitting
from opguard_core.contract.knobs import KNOBS, launch_environment, launch_report
from opguard_core.contract.source_tree import git_commit, tree_digest
from opguard_core.contract.spec import RULES, SEVERITIES, is_late, rule_of
from opguard_core.determinism.environment import given, relevant
from opguard_core.ids import Origin
from opguard_core.plan.command import GIVEN_VARIABLE, names_given
from opguard_core.plan.redact import MASK, is_secret_name, redact_argv, redact_text
from opguard_core.plan.support import DEPENDENCIES, install_line, untested_pair

REPOSITORY = Path(__file__).resolve().parents[2]


def severities(reference, suspect):
    return {item.key: item.severity for item in compare(reference, suspect)}


def test_equal_contracts_have_no_differences():
    contract = {"torch.version": "2.13", "x": float("nan"), "y": {"unknown": "a"}, "z": [1, {"k": [2, None]}]}
    assert compare(contract, json.loads(json.dumps(contract))) == []


def test_differences_come_worst_first_with_both_values():
    found = compare(
        {"torch.version": "2.13", "threads.intraop": 1, "package.tqdm": "1", "start.rng.torch": "a", "late": "end"},
        {"torch.version": "2.12", "threads.intraop": 2, "package.tqdm": "2", "start.rng.torch": "b", "late": "end"},
    )
    assert [(item.key, item.severity) for item in found] == [
        ("torch.version", "arithmetic"),
        ("threads.intraop", "order"),
        ("package.tqdm", "environment"),
        ("start.rng.torch", "cosmetic"),
    ]
    assert found[0].as_dict() == {"key": "torch.version", "severity": "arithmetic", "reference": "2.13", "suspect": "2.12"}


@pytest.mark.parametrize(
    ("key", "severity"),
    [
        ("run.world_size", "arithmetic"),
        ("cpu.capability", "arithmetic"),
        ("env.OMP_NUM_THREADS", "order"),
        ("env.MKL_CBWR", "arithmetic"),
        ("env.NCCL_DEBUG_FILE", "cosmetic"),
        ("env.NCCL_ALGO", "environment"),
        ("env.PYTHONHASHSEED", "order"),
        ("env.TORCH_SOMETHING_NEW", "environment"),
        ("flags.cuda.matmul.allow_tf32", "environment"),
        ("flags.sdpa.flash", "arithmetic"),
        ("flags.default_dtype", "arithmetic"),
        ("flags.fp32_precision.mkldnn.matmul", "arithmetic"),
        ("flags.fp32_precision.cudnn.conv", "environment"),
        ("forward.autocast", "arithmetic"),
        ("dtype.parameters", "arithmetic"),
        ("loader.0.batch_size", "arithmetic"),
        ("loader.0.num_workers", "order"),
        ("loader.1.sampler_epoch", "order"),
        ("loader.0.pin_memory", "environment"),
        ("load.0.digest", "arithmetic"),
        ("checkpoint.0.digest", "environment"),
        ("ddp.bucket_bytes", "order"),
        ("dist.backend", "order"),
        ("compile.inductor", "order"),
        ("rng.step.torch", "environment"),
        ("seed.torch", "arithmetic"),
        ("source.tree", "cosmetic"),
        ("never.heard.of.it", "environment"),
    ],
)
def test_what_a_difference_means(key, severity):
    assert severities({key: 1, "late": "end"}, {key: 2, "late": "end"}) == {key: severity}


def test_settings_of_an_accelerator_count_once_one_was_used():
    sides = [{"flags.cuda.matmul.allow_tf32": on, "device.name": "H200", "late": "end"} for on in (True, False)]
    assert severities(*sides) == {"flags.cuda.matmul.allow_tf32": "arithmetic"}


def test_a_seed_that_nothing_was_drawn_from_changes_nothing():
    def sides(*drawn):
        return [{"seed.torch": seed, "rng.drawn": used, "late": "end"} for seed, used in zip((1, 2), drawn, strict=True)]

    assert severities(*sides(False, False))["seed.torch"] == "environment"
    assert severities(*sides(False, True))["seed.torch"] == "arithmetic"


def test_attention_kernels_of_an_accelerator_are_idle_on_the_cpu():
    def sides(name, **more):
        kinds = {"flash": True, "math": True, "mem_efficient": True}
        return [{"forward.sdpa": {**kinds, name: on}, "late": "end", **more} for on in (True, False)]

    assert severities(*sides("mem_efficient")) == {"forward.sdpa": "environment"}
    assert severities(*sides("math")) == {"forward.sdpa": "arithmetic"}
    assert severities(*sides("mem_efficient", **{"device.name": "H200"})) == {"forward.sdpa": "arithmetic"}


def test_what_only_one_side_loads_or_makes_is_no_conflict():
    resumed = {"load.0.digest": "abc", "loader.1.batch_size": 4, "late": "end"}
    assert set(severities({"late": "end"}, resumed).values()) == {"environment"}


def test_what_the_events_show_is_told_and_leaves_the_verdict_to_them():
    sides = [{"forward.autocast": policy, "flags.mkldnn.enabled": bool(policy), "late": "end"} for policy in ([], ["cpu bfloat16"])]
    found = compare(*sides)
    assert [(item.key, item.warns, item.conflicts) for item in found] == [
        ("flags.mkldnn.enabled", True, True),
        ("forward.autocast", True, False),
    ]
    assert found[1].sentence() == "forward.autocast: reference [], suspect ['cpu bfloat16'] (arithmetic)"


def test_a_long_value_is_cut_in_a_sentence_and_whole_in_the_answer():
    found = compare({"torch.build": "a" * 200}, {"torch.build": None})[0]
    assert len(found.sentence()) < 140
    assert found.as_dict()["reference"] == "a" * 200


def test_mirrored_sides_give_mirrored_differences():
    one, other = {"torch.version": "a", "env.NCCL_ALGO": "Ring", "late": "x"}, {"torch.version": "b", "late": "x", "flags.y": True}
    mirrored = [(item.key, item.severity, item.suspect, item.reference) for item in compare(other, one)]
    assert mirrored == [(item.key, item.severity, item.reference, item.suspect) for item in compare(one, other)]


def test_unknown_values_never_count_against_a_run():
    unknown = {"unknown": "AttributeError: x"}
    assert severities({"torch.git": unknown}, {"torch.git": unknown}) == {}
    assert severities({"torch.git": unknown}, {"torch.git": "abc"}) == {"torch.git": "cosmetic"}
    odd = {"torch.git": object(), 3: {1, 2}, "x": b"bytes", "y": {"a": {"b": None}}}
    assert "torch.git" in severities(odd, {})


def test_a_run_killed_before_its_late_facts_has_no_conflict_because_of_that():
    whole = {"torch.version": "2", "late": "first optimizer step", "flags.cudnn.benchmark": False, "cpu.capability": "AVX2"}
    found = severities({"torch.version": "2"}, whole)
    assert set(found.values()) == {"cosmetic"}
    assert not is_late("torch.version")


def test_true_is_not_one_and_kinds_differ():
    assert severities({"flags.sdpa.math": True, "late": ""}, {"flags.sdpa.math": 1, "late": ""}) == {"flags.sdpa.math": "arithmetic"}


def test_ranks_are_compared_with_their_like_and_each_key_is_told_once():
    base = {"late": "end"}
    reference = {0: {**base, "device.name": "a"}, 1: {**base, "device.name": "a"}, 2: base}
    suspect = {0: {**base, "device.name": "a"}, 1: {**base, "device.name": "b"}}
    assert [(item.key, item.suspect) for item in compare_ranks(reference, suspect)] == [("device.name", "b")]


def test_the_table_is_sound():
    assert {rule.severity for rule in RULES} <= set(SEVERITIES)
    assert all(rule.why for rule in RULES)
    patterns = [rule.pattern for rule in RULES]
    assert len(set(patterns)) == len(patterns)
    assert all(rule_of(pattern.replace("*", "x")).pattern == pattern for pattern in patterns), "a rule stands behind one that hides it"


def test_every_knob_says_why_and_where_from():
    assert all(knob.why.endswith(".") and knob.source and knob.when in ("launch", "rank") for knob in KNOBS)
    assert len({knob.name for knob in KNOBS}) == len(KNOBS)


def test_a_variable_that_the_user_has_set_is_not_overruled():
    report = launch_report({"NCCL_ALGO": "Tree"})
    assert report["NCCL_ALGO"] == {"before": "Tree", "after": "Tree"}
    assert report["PYTHONHASHSEED"] == {"before": None, "after": launch_environment()["PYTHONHASHSEED"]}


def test_only_listed_variables_are_kept_and_secrets_masked():
    env = {
        "OMP_NUM_THREADS": "1",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "x",
        "TORCH_HUB_TOKEN": "x",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    assert relevant(env) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1", "TORCH_HUB_TOKEN": "***"}


def test_secrets_leave_a_command_line_and_nothing_else_does():
    argv = ["train.py", "--hf-token", "abc", "--api_key=def", "--lr", "1e-3", "WANDB_API_KEY=ghi", "--max-tokens", "5", "--tokenizer=gpt2"]
    shown = redact_argv(argv)
    assert shown == [
        "train.py",
        "--hf-token",
        "***",
        "--api_key=***",
        "--lr",
        "1e-3",
        "WANDB_API_KEY=***",
        "--max-tokens",
        "5",
        "--tokenizer=gpt2",
    ]
    assert redact_text("https://me:pw@host/x?token=abc&page=2") == "https://me:***@host/x?token=***&page=2"
    assert redact_argv(["--token", "--next", "x"]) == ["--token", "--next", "x"]
    assert not is_secret_name("pad_token_id")


def test_the_floors_are_those_of_the_project_and_the_install_line_is_exact():
    declared = (REPOSITORY / "pyproject.toml").read_text()
    assert all(f'"{name}>={floor}"' in declared for name, floor in DEPENDENCIES.items())
    assert install_line("/a b/python", ["numpy"]) == "'/a b/python' -m pip install 'numpy>=1.26'"


def test_pairs_of_python_and_torch():
    assert untested_pair("3.11.7", "2.13.0+cpu") == ""
    assert "Python 3.12.1 with torch 2.13.0 is an untested pair" in untested_pair("3.12.1", "2.13.0")


def test_the_tree_digest_follows_names_and_contents_of_python_files_only(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "data.bin").write_text("1")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.py").write_text("1")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "env" / "x.py").write_text("1")
    first = tree_digest(tmp_path)
    assert first["num_files"] == 1
    (tmp_path / "data.bin").write_text("2")
    assert tree_digest(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert tree_digest(tmp_path) != first


def test_a_huge_tree_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr("opguard_core.contract.source_tree.MAX_ENTRIES", 2)
    for name in "abc":
        (tmp_path / f"{name}.py").touch()
    assert "unknown" in tree_digest(tmp_path)


def _git(folder, *words):
    author = ["-c", "user.name=x", "-c", "user.email=x@x"]
    return subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_read_without_running_git(tmp_path):
    assert git_commit(tmp_path) is None
    _git(tmp_path, "init", "-q")
    assert git_commit(tmp_path) is None
    _git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    head = _git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "sub").mkdir()
    assert git_commit(tmp_path / "sub") == head
    _git(tmp_path, "pack-refs", "--all")
    assert git_commit(tmp_path) == head
    _git(tmp_path, "worktree", "add", "-q", "--detach", "tree")
    assert git_commit(tmp_path / "tree") == head


LOADER = {"dataset": "Rows", "batch_size": 4, "sampler": ["RandomSampler"], "shuffle": True}


def under(prefix, facts):
    return {f"{prefix}.{key}": value for key, value in facts.items()}


@pytest.mark.parametrize("prefix", ["loader.2", "load.0", "checkpoint.11"])
@pytest.mark.parametrize("flip", [False, True], ids=["reference", "suspect"])
def test_what_only_one_side_made_is_one_difference_with_all_its_settings(prefix, flip):
    sides = [{"late": "end", **under(prefix, LOADER)}, {"late": "end"}]
    (found,) = compare(*(sides[::-1] if flip else sides))
    assert (found.key, found.severity) == (f"{prefix}.exists", "environment")
    assert (found.suspect if flip else found.reference) == LOADER
    assert (found.reference if flip else found.suspect) is None


def test_what_both_sides_made_is_compared_setting_by_setting():
    other = {**LOADER, "shuffle": False}
    del other["sampler"]
    found = severities({"late": "", **under("loader.1", LOADER)}, {"late": "", **under("loader.1", other)})
    assert found == {"loader.1.shuffle": "order", "loader.1.sampler": "environment"}


def test_a_run_killed_early_is_not_said_to_lack_what_it_did_not_get_to():
    assert set(severities({"late": "end", **under("loader.0", LOADER)}, {})) >= {"loader.0.batch_size"}


@pytest.mark.parametrize(
    ("reference", "suspect", "told"),
    [
        ({"w": "1", "ema.updates": "2"}, {"w": "1"}, ({"ema.updates": "2"}, {})),
        ({"w": "1"}, {"w": "2"}, ({"w": "1"}, {"w": "2"})),
        ({"w": "1", "b": "2"}, {"module.w": "1", "module.b": "2"}, None),
        ({"w": "1", "v": "1"}, {"module.w": "1"}, ({"w": "1"}, {})),
    ],
    ids=["one side only", "other bits", "renamed", "one of two alike"],
)
def test_loaded_tensors_are_named_that_make_the_difference(reference, suspect, told):
    found = compare({"load.3.parts": reference, "late": ""}, {"load.3.parts": suspect, "late": ""})
    if told is None:
        assert found == []
        return
    assert (found[0].key, found[0].severity, found[0].conflicts) == ("load.3.parts", "arithmetic", False)
    if reference == {"w": "1", "v": "1"}:  # either of the two is right
        assert (len(found[0].reference), found[0].suspect) == (1, {})
    else:
        assert (found[0].reference, found[0].suspect) == told


def test_of_many_loaded_tensors_a_few_are_named():
    found = compare({"load.0.parts": {str(at): "a" for at in range(99)}, "late": ""}, {"load.0.parts": {}, "late": ""})
    assert 0 < len(found[0].reference) < 20


@pytest.mark.parametrize("origin", list(Origin))
def test_settings_that_fit_an_origin_come_first_and_noise_never(origin):
    contract = [
        {"key": key, "severity": rule_of(key).severity, "reference": 1, "suspect": 2}
        for key in ("torch.version", "start.rng.torch", "rng.step.numpy", "source.tree", "loader.1.sampler_epoch", "load.3.parts")
    ]
    keys = [item["key"] for item in fitting(contract, str(origin))]
    assert not {"start.rng.torch", "rng.step.numpy", "source.tree"} & set(keys)
    assert set(keys) == {"torch.version", "loader.1.sampler_epoch", "load.3.parts"}
    first = {Origin.RANDOM_STATE: "loader.1.sampler_epoch", Origin.INPUT_DATA: "loader.1.sampler_epoch"}
    loaded = (Origin.UNOBSERVED_PRODUCER, Origin.INITIAL_STATE)
    if origin in first or origin in loaded:
        assert keys[0] == first.get(origin, "load.3.parts")


@pytest.mark.parametrize(
    ("program", "fresh"),
    [
        ("", True),
        ("numpy.random.rand()", False),
        ("numpy.random.seed(3)", False),
        ("numpy.random.set_state(numpy.random.RandomState(3).get_state())", False),
        ("numpy.random.default_rng().random()", True),
    ],
    ids=["untouched", "drawn", "seeded", "restored", "of its own"],
)
def test_a_numpy_generator_that_nobody_touched_is_told_from_one_that_was(program, fresh):
    code = f"import numpy.random; {program or 'pass'}; from opguard_core.determinism.streams import numpy_is_fresh; print(numpy_is_fresh())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert said.stdout.split() == [str(fresh)]


def test_variables_that_were_set_for_a_side_are_told_by_digest():
    env = {"WIDTH": "3", "API_TOKEN": "s3cret", "OMP_NUM_THREADS": "2", "OTHER": "5"}
    told = given({**env, **names_given(["WIDTH", "API_TOKEN", "OMP_NUM_THREADS", "GONE"])})
    assert told.keys() == {"WIDTH", "API_TOKEN"}  # what a contract keeps as it is comes with the rank's own facts
    assert told["WIDTH"] != given({**env, "WIDTH": "4", **names_given(["WIDTH"])})["WIDTH"]
    assert "s3cret" not in str(told) and told["API_TOKEN"] == MASK
    assert names_given([]) == given(env) == given({**env, GIVEN_VARIABLE: "["}) == given({**env, GIVEN_VARIABLE: "7"}) == {}
