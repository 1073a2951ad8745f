"""From a line of generated code to lines of the program, also where the code was generated for another folder or an older text."""

from types import SimpleNamespace

import pytest

from opguard_core.engines.inductor.origins import Line, Node, Origins, Traced, keep, kept, lines_of

TRACE = (
    '  File "/run/a/train.py", line {first}, in forward\n    y = self.inner(x)\n'
    '  File "/run/a/model.py", line {second}, in forward\n    return x * 2\n'
)


class Graph:
    """Of ``torch.fx.Graph`` what is asked for."""

    def __init__(self, traces, **inner):
        self.owning_module = SimpleNamespace(**{name: SimpleNamespace(graph=one) for name, one in inner.items()})
        self.nodes = [
            SimpleNamespace(op="call_function", name=name, target=SimpleNamespace(__name__=target), meta={"stack_trace": trace}, graph=self)
            for name, (target, trace) in traces.items()
        ] + [SimpleNamespace(op="get_attr", name=name, target=name, meta={}, graph=self) for name in inner]


def graph(**traces):
    return Traced(Graph(traces))


def trace(line, text, function="forward", file="/run/a/train.py"):
    return f'  File "{file}", line {line}, in {function}\n    {text}\n'


def test_a_stack_is_read_outermost_first():
    assert lines_of(TRACE.format(first=3, second=9)) == (
        Line("/run/a/train.py", 3, "forward", "y = self.inner(x)"),
        Line("/run/a/model.py", 9, "forward", "return x * 2"),
    )
    assert lines_of(None) == lines_of("no stack") == ()


def test_lines_of_a_cache_are_those_of_the_program_that_runs():
    """The cache was filled by a program in another folder, above whose line another one stood."""
    now = TRACE.format(first=4, second=12).replace("/run/a/", "/run/b/")
    known = {"cpp_fused_mul_0": [(Node("old", "mul", lines_of(TRACE.format(first=3, second=9))),)]}
    found = Origins(known, {}, (), graph(mul=("mul", now))).of_launch("cpp_fused_mul_0", 0, 50)
    assert [(line.file, line.line) for line in found[0]] == [("/run/b/train.py", 4), ("/run/b/model.py", 12)]


def test_what_is_not_in_the_program_any_more_is_no_line_of_it():
    known = {"cpp_fused_mul_0": [(Node("old", "mul", (Line("/run/a/old.py", 1, "gone", "x * 3"),)),)]}
    traced = graph(mul=("mul", TRACE.format(first=3, second=9)))
    assert Origins(known, {}, (), traced).of_launch("cpp_fused_mul_0", 0, 50) == (lines_of(TRACE.format(first=3, second=9)),)
    assert Origins(known, {}, (), traced).of_launch("cpp_fused_other_0", 0, 50)[0][-1].line == 3  # where the region begins


def test_a_launch_comes_from_all_its_nodes_in_their_order():
    one, other = TRACE.format(first=3, second=9), TRACE.format(first=5, second=9).replace("self.inner(x)", "self.inner(y)")
    traced = graph(first=("mul", one), second=("add", other.replace("return x * 2", "return x + 2")))
    found = Origins({}, {7: ("first", "second")}, [(1, one)], traced).of_launch("triton_poi_fused_0", 0, 7)
    assert [stack[-1].text for stack in found] == ["return x * 2", "return x + 2"]
    # A library call has one stack, which Inductor keeps with the code; else the last of its nodes.
    assert Origins({}, {7: ("first", "second")}, [(1, one)], traced).of_line(9)[0][-1].text == "return x * 2"
    assert Origins({}, {7: ("first", "second")}, [], traced).of_line(7)[0][-1].text == "return x + 2"


def test_lines_of_a_graph_inside_the_graph_are_the_programs():
    """The body of a checkpoint, or of an autograd function: each names its nodes by itself, so a name of two graphs says nothing."""
    backward = Graph({"mul": ("mul", trace(14, "g * 2", "backward"))})
    traced = Traced(Graph({"mul": ("mul", trace(21, "y * 3")), "out": ("add", trace(22, "y + 1"))}, backward=backward))
    known = {"cpp_fused_mul_0": [(Node("mul", "mul", lines_of(trace(14, "g * 2", "backward"))),)]}
    found = Origins(known, {}, (), traced).of_launch("cpp_fused_mul_0", 0, 50)
    assert [stack[-1].line for stack in found] == [14]
    assert set(traced.by_name) == {"out"}


def test_lines_of_a_backward_that_was_traced_as_a_whole_are_those_of_its_operators():
    """Compiled autograd's graph is code that torch wrote: where it begins is no line of the program."""
    written = trace(5, "getitem = inputs[0]", file="<eval_with_key>.3")
    traced = graph(getitem=("getitem", written), mul=("mul_Tensor", trace(14, "g * 2")), tanh=("tanh", trace(20, "tanh(x)")))
    assert lines_of(written) == () and traced.first is None
    known = {"cpp_fused_0": [(Node("", "mul", ()),)]}
    found = Origins(known, {}, (), traced).of_launch("cpp_fused_0", 0, 50)
    assert [stack[-1].text for stack in found] == ["g * 2"]
    assert Origins({}, {}, (), traced).of_launch("cpp_fused_0", 0, 50) == ()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_nodes_are_kept_for_a_later_process(folder):
    nodes = {"cpp_fused_mul_0": [(Node("mul", "mul", (Line("a.py", 1, "f", "x * 2"),)), Node("add", "add", ()))]}
    assert kept("text") == {}
    keep("text", nodes)
    assert kept("text") == nodes
    assert kept("other text") == {}
