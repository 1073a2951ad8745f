"""Orders that name calls: what they match, and what they are called."""

import pytest

from opguard_core.errors import ConfigError
from opguard_core.marks import ANNOUNCED, NAME
from opguard_core.plan.command import RUN_VARIABLE
from opguard_core.plan.semantic import MAX_PATTERNS, FunctionPattern, identifier, parse, parse_all


@pytest.mark.parametrize(
    ("pattern", "path", "name"),
    [
        ("model.layers.*.mlp", "model.layers.3.mlp", "model.layers.3.mlp"),
        ("model.layers.*.mlp", "model.layers.3.x.mlp", None),  # one part
        ("model.layers.*.mlp", "model.layers.3.mlp.up", None),
        ("model.**.mlp", "model.layers.3.mlp", "model.layers.3.mlp"),
        ("**", "a.b", "a.b"),
        ("**", "", None),
        (".", "", "model"),
        (".=llama", "", "llama"),
        ("blocks.*.attention=layers.*.attn", "blocks.7.attention", "layers.7.attn"),
        ("*.*=x.*.y.*", "a.b", "x.a.y.b"),
        ("h.*=layer", "h.7", "layer"),
        ("layers.1*", "layers.12", "layers.12"),
        ("GPT#2.head", "GPT#2.head", "GPT#2.head"),
    ],
)
def test_a_module_is_named_by_the_pattern_that_fits_its_path(pattern, path, name):
    assert parse(pattern).named(path) == name


def test_a_function_is_named_by_where_it_is_defined():
    assert parse("package.module:Class.method=rope") == FunctionPattern(
        "package.module:Class.method=rope", "package.module", "Class.method", "rope"
    )
    assert parse("package.module:apply").name == "apply"


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a..b", ".a", "a.", "a=", "=a", "***", "a=*", "m:f=*", "m:", ":f", "m:f()", "m:1f", "a=b c", "a" * 300, "a=" + "b" * 200],
)
def test_what_is_no_pattern_is_refused_with_the_option(text):
    with pytest.raises(ConfigError, match="--semantic"):
        parse(text)


def test_too_many_are_refused():
    with pytest.raises(ConfigError, match=str(MAX_PATTERNS)):
        parse_all([f"a{number}" for number in range(MAX_PATTERNS + 1)])


@pytest.mark.parametrize("text", ["plain", "a b\n`c`", "<script>", "-x", ".x", "é" * 200, ""])
def test_every_text_becomes_a_name(text):
    assert NAME.fullmatch(identifier(text))


def test_the_variable_that_announces_a_capture_is_the_launchers():
    assert ANNOUNCED == RUN_VARIABLE
