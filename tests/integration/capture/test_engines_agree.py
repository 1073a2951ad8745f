# ruff: noqa: E402  (torch may be missing)
"""Both engines tell the same of the same program, and the program cannot tell that the native one looks."""

import functools
import gc
import json
import os
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.determinism import facts
from opguard_core.trace.reader import Run
from tests.support.campaign import CAMPAIGN, campaign
from tests.support.engine_programs.catalogue import MODES, load
from tests.support.engine_programs.ranks import RUNS as RANKS
from tests.support.engine_streams import INERT, ROOT, Outcome, differences, engines_of, outcome, read_tables
from tests.support.native import native_or_skip

TIMEOUT_S = 600
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
# Whole programs cost four launches each: one of each kind of program.
CASES = tuple(
    ROOT / "tests" / "cases" / name
    for name in (
        "checkpoint-counts-calls",
        "foreach-lists-misaligned",
        "neg-loader-workers",
        "neg-transformer-checkpointed-and-packed",
        "neg-uninitialised-scratch",
        "worker-seed-ignores-epoch",
    )
)
PROGRAMS = load()
# The quick tier: one of each kind of difference that two engines can have.
QUICK = frozenset(
    {
        "data.loader",
        "extensions.a_write_that_the_schema_does_not_declare",
        "extensions.operators_of_the_program",
        "extensions.operators_with_a_gradient",
        "gradients.complex_numbers",
        "gradients.engines_inside_engines",
        "gradients.functions_of_the_program",
        "gradients.gradients_of_gradients",
        "gradients.hooks",
        "gradients.nodes_that_modes_change",
        "kinds.sparse",
        "kinds.subclass_that_wraps",
        "modes.operators_replaced",
        "operators.a_buffer_written_bit_by_bit",
        "operators.dropout_and_generators",
        "operators.exceptions",
        "operators.in_place_and_views",
        "operators.lists_of_tensors",
        "operators.many_views_of_one_buffer",
        "operators.reads",
        "operators.resized",
        "operators.scalars_and_types",
        "outside.functions_of_an_extension",
        "outside.operators_inside_a_function",
        "optimizers.adamw_foreach",
        "optimizers.in_native_code",
        "optimizers.numbers_in_the_state",
        "optimizers.owners_that_come_and_go",
        "threads.side_by_side",
        "threads.workers_in_turn",
        "trainings.a_window_of_steps",
        "trainings.checkpoints_with_dropout",
        "trainings.gpt_in_bfloat16",
        "transforms.vmap",
    }
)


@pytest.fixture(scope="module", autouse=True)
def small_sessions_are_quick():
    """Reading the versions of installed packages, and collecting garbage among all that is imported, is most of their cost."""
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "_version", functools.lru_cache(None)(facts._version))
        yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def native():
    native_or_skip()


def cases():
    """The most telling programs in one mode each; in a campaign every program, and those in all modes."""
    for name, program in PROGRAMS.items():
        if not CAMPAIGN and (name not in QUICK or program.full):
            continue
        for mode in MODES if name in QUICK and CAMPAIGN else (program.quick_mode,):
            quick = name in QUICK and not program.full and mode == program.quick_mode
            marks = [] if quick else [pytest.mark.full]
            if program.differs:
                marks.append(pytest.mark.xfail(reason=program.differs, strict=True))
            yield pytest.param(program, mode, id=f"{name}-{mode}", marks=marks)


def runs_of(program, mode, folder, *engines, **options):
    if missing := program.missing():
        pytest.skip(f"this torch has no {missing}")
    outcome(program, None, folder / "warm")  # what torch and the program do only once is done
    return [outcome(program, engine, folder / str(number), mode, **options) for number, engine in enumerate(engines)]


def observers(run):
    """Who looked at operators; calls outside the dispatcher are looked at with either."""
    return set(engines_of(run)) - {"outside"}


@pytest.mark.parametrize(("program", "mode"), list(cases()))
def test_engines_tell_the_same(native, tmp_path, program, mode):
    # Under a mode torch compiles nothing, and refuses what must be one graph.
    dispatch, alike = runs_of(program, mode, tmp_path, "dispatch" + INERT, "native" + INERT, compiled="eager")
    assert observers(dispatch) == {"dispatch"} and observers(alike) == {"native"}
    assert not differences(dispatch, alike, overlaps=program.overlaps)


@pytest.mark.parametrize(("program", "mode"), list(cases()))
def test_a_program_cannot_tell_that_the_native_engine_looks(native, tmp_path, program, mode):
    bare, dispatch, observed = runs_of(program, mode, tmp_path, None, "dispatch", "native")
    assert observers(observed) == {"native"}
    assert (observed.result, observed.warned, observed.random) == (bare.result, bare.warned, bare.random)
    assert not differences(dispatch, observed, overlaps=program.overlaps, in_place=True)


@pytest.fixture(scope="module")
def ranks(native, tmp_path_factory):
    """What two gloo ranks say of their programs, each of both engines."""
    folder = tmp_path_factory.mktemp("ranks")
    argv = [sys.executable, "-m", "tests.support.engine_programs.ranks"]
    started = [
        subprocess.Popen(
            [*argv, str(rank), str(folder / "store"), str(folder)], cwd=ROOT, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=TIMEOUT_S) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    return [json.loads(out) for out, _ in ended]


@campaign
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("name", sorted(RANKS))
def test_engines_tell_the_same_of_two_ranks(ranks, name):
    for said in ranks:
        assert said[name] == {"strict": [], "used": [], "changed": [], "engines": ["dispatch", "native", "native"]}


@campaign
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_engines_give_the_same_verdict(native, tmp_path, case):
    """Whole programs, launched as people launch them."""
    launch = json.loads((case / "case.json").read_text()).get("launch", ["python", "train.py"])
    if launch[0] != "python":
        pytest.skip(f"this case is launched by {launch[0]}: its ranks overlap")
    answers = {}
    for engine in ("dispatch", "native"):
        for side in ("reference", "suspect"):
            folder = tmp_path / "program"  # at one place for both: its name is in the traces
            shutil.copytree(case / side, folder)
            words = [sys.executable, *launch[1:]]
            options = ["--out", str(tmp_path / engine / side), "--mode", "full", "--engine", engine]
            argv = [sys.executable, "-m", "opguard_core", "run", *options, "--", *words]
            done = subprocess.run(argv, cwd=folder, env=ENV, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            assert done.returncode == 0, done.stderr
            shutil.rmtree(folder)
        answers[engine] = to_dict(compare(*(Run.open(tmp_path / engine / side) for side in ("reference", "suspect"))))
    assert told(answers["native"]) == told(answers["dispatch"])
    for side in ("reference", "suspect"):
        one, other = (Outcome(None, [], "", *read_tables(tmp_path / engine / side / "rank-00000")) for engine in ("dispatch", "native"))
        assert set(engines_of(other)) == {"native"}
        assert not differences(one, other, in_place=True)


def told(answer):
    """An answer less what is measured."""
    return {key: answer[key] for key in ("verdict", "pivot", "isolated", "reasons", "prefix")}


def test_the_native_engine_adds_no_python_frames(native, tmp_path):
    from tests.support.engine_programs import extensions

    program = PROGRAMS["extensions.operators_of_the_program"]
    seen = []
    for number, engine in enumerate((None, "native")):
        extensions.FRAMES.clear()
        outcome(program, engine, tmp_path / str(number))
        seen.append(list(extensions.FRAMES))
    assert seen[0] == seen[1]


def test_a_suite_that_finds_nothing_would_find_a_difference(tmp_path):
    first, second = (
        outcome(PROGRAMS["trainings.mlp"], "dispatch", tmp_path / str(number), mode) for number, mode in enumerate(("full", "verify"))
    )
    assert any("carried" in line and "probed" in line for line in differences(first, second))
    second = outcome(PROGRAMS["optimizers.sgd_foreach"], "dispatch", tmp_path / "other", "full")
    assert differences(first, second)
