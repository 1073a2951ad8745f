# ruff: noqa: E402  (torch may be missing)
"""The native engine: when it is chosen and why not, what it leaves to Python, and that its own trouble stays its own."""

import json

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.capture.session import start
from opguard_core.engines import native, native_build
from opguard_core.errors import UnknownOption
from opguard_core.plan.config import ENGINES, RunConfig
from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import engines_of, outcome
from tests.support.native import native_or_skip

BUILD_S = 900  # where it has not been built yet


@pytest.fixture(scope="module")
def loaded():
    return native_or_skip()


def seen(run, folder, mode="full", **options):
    return outcome(Program("test", run), "native", folder / "run", mode, **options)


def operators(outcome):
    return [operator for operator in outcome.tables["events"]["operator"] if not operator.startswith("opguard.")]


def rows(outcome, operator):
    events = outcome.tables["events"]
    return [{name: column[row] for name, column in events.items()} for row, found in enumerate(events["operator"]) if found == operator]


def test_an_engine_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UnknownOption, match="auto, native, dispatch"):
        RunConfig(run_dir=tmp_path, user_root=tmp_path, engine="fast")


def test_why_the_dispatch_engine_looks_is_a_sentence():
    class Columns:
        def pull_from(self, source):
            pass

    assert "asked for" in native.choose("dispatch", "full", Columns())
    assert "no operator" in native.choose("native", "sentinel", Columns())
    assert "rows" in native.choose("native", "full", object())
    assert ENGINES[0] == RunConfig.__dataclass_fields__["engine"].default


def test_without_a_compiler_the_dispatch_engine_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(native_build, "_found", native_build.Missing("no C++ compiler here"))
    side = seen(lambda: torch.ones(2) + 1, tmp_path)
    assert engines_of(side)["dispatch"]["why_not_native"] == "no C++ compiler here"
    assert "aten.add.Tensor" in operators(side)


@pytest.mark.timeout(BUILD_S)
def test_operators_seen_before_do_not_enter_python(loaded, tmp_path):
    x = torch.ones(4)

    def run(count):
        def program():
            for _ in range(count):
                x + 1

        return program

    few, many = (engines_of(seen(run(count), tmp_path / str(count)))["native"] for count in (3, 300))
    assert many["events"] - few["events"] == 297
    assert many["python"]["by_reason"]["new-place"] == few["python"]["by_reason"]["new-place"]
    assert many["python"]["total"] - few["python"]["total"] <= 2  # freed storages are looked for every 512 events


def test_a_mode_of_the_program_comes_first_and_what_it_calls_is_seen(loaded, tmp_path):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {})) * 2

    def run():
        with Doubled():
            torch.ones(3) + 1

    assert operators(seen(run, tmp_path)) == ["aten.ones.default", "aten.mul.Tensor", "aten.add.Tensor", "aten.mul.Tensor"]


def test_a_subclass_takes_its_calls_apart_and_what_it_calls_is_seen(loaded, tmp_path):
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return cls(func(*[a.inner if isinstance(a, cls) else a for a in args], **(kwargs or {})))

    def run():
        Wrapped(torch.ones(3)) * 2

    side = seen(run, tmp_path)
    assert operators(side)[-1] == "aten.mul.Tensor"
    assert engines_of(side)["native"]["delegated_to_subclasses"] in (0, 1)  # where Python's key comes first, torch does not ask us


def test_fake_tensors_are_not_observed(loaded, tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run():
        with FakeTensorMode():
            torch.ones(3) @ torch.ones(3)

    assert operators(seen(run, tmp_path)) == []


def test_an_operator_that_raises_says_what(loaded, tmp_path):
    def run():
        with pytest.raises(IndexError):
            torch.embedding(torch.ones(3, 2), torch.tensor([7]))

    (event,) = rows(seen(run, tmp_path), "aten.embedding.default")
    assert event["args"].endswith(";raised=IndexError")


def test_an_exception_of_a_python_kernel_reaches_the_program_as_it_is(loaded, tmp_path):
    class Odd(Exception):
        pass

    @torch.library.custom_op("opguard_test_native::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        raise Odd("mine")

    def run():
        with pytest.raises(Odd, match="mine"):
            odd(torch.ones(2))

    (event,) = rows(seen(run, tmp_path), "opguard_test_native.odd.default")
    assert event["args"].endswith("raised=Odd")


def test_a_failure_of_ours_is_a_gap_and_the_program_goes_on(loaded, tmp_path, monkeypatch):
    def fails(self, name, value):
        raise ValueError("planted")

    monkeypatch.setattr(native.NativeEngine, "argument_text", fails)

    def program():
        with pytest.raises(RuntimeError):
            torch.div(torch.ones(2), torch.ones(2), rounding_mode="it's")
        return (torch.ones(2) + 1).tolist()

    side = seen(program, tmp_path)
    assert side.result == [(2.0).hex()] * 2
    assert "planted" in json.dumps(side.manifest["coverage"]["gaps"]["internal-error"])


def test_verify_finds_a_write_that_nobody_declared(loaded, tmp_path):
    @torch.library.custom_op("opguard_test_native::sly", mutates_args=())
    def sly(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    side = seen(lambda: sly(torch.ones(2)), tmp_path, "verify")
    assert side.manifest["coverage"]["undeclared_writes"] == 1
    assert "mut.0" in side.tables["slots"]["slot"]


def test_sessions_follow_one_another(loaded, tmp_path):
    sides = [seen(lambda: torch.ones(2) + 1, tmp_path / str(number)) for number in range(3)]
    assert [operators(side) for side in sides] == [["aten.ones.default", "aten.add.Tensor"]] * 3


def test_after_the_end_operators_are_left_alone(loaded, tmp_path):
    session = start(RunConfig(run_dir=tmp_path, user_root=tmp_path, engine="native"))
    session.stop("exit")
    assert not loaded.module.is_included()


def test_digests_that_python_promises_for_an_operator_of_cpp_arrive(loaded, tmp_path, monkeypatch):
    """Where C++ reads no memory itself it asks Python, whose answer may come later."""
    from opguard_core.probe import tensor
    from opguard_core.probe.promise import Promise

    class Late(Promise):
        looks = 0

        def look(self):
            self.looks += 1
            if self.result is None and self.looks > 2:
                self.keep(self.known)
            return self.result

    def late(of):
        known = at_once(of)
        promise = Late(None, known.nbytes, 0)
        promise.known = known
        return promise

    def program():
        x = torch.arange(6.0, requires_grad=True)
        (x.sin() * 2).sum().backward()

    at_once = tensor.fingerprint
    expected = seen(program, tmp_path / "at-once")
    monkeypatch.setattr(native, "_fingerprints", lambda module: module.Fingerprints(module.Cells()))
    monkeypatch.setattr(tensor, "fingerprint", late)
    found = seen(program, tmp_path / "late")
    for column in ("slot", "status", "mix64", "value64", "bag64", "xor32", "trivial"):
        assert found.tables["slots"][column] == expected.tables["slots"][column], column
