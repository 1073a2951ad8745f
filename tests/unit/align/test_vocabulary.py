import numpy as np
import pytest

from opguard_core.align.vocabulary import NO_TEXT, Vocabulary, bare_operator, element_count, fold_operator, parse_shape, squash


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("aten.add.Tensor", "add"),
        ("aten.add_.Tensor", "add"),
        ("aten.mul.out", "mul"),
        ("aten._foreach_lerp_.Scalar", "lerp"),
        ("aten._foreach_norm.Scalar", "linalg_vector_norm"),
        ("aten._softmax.default", "_softmax"),
        ("aten.__and__.Tensor", "__and__"),
        ("prims.convert_element_type.default", "convert_element_type"),
        ("c10d.allreduce_.default", "c10d.allreduce"),
        ("mylib.fused_.default", "mylib.fused"),
        ("triton_kernel", "triton_kernel"),
        ("extension.my_ext.scale_", "extension.my_ext.scale_"),
        ("extension.my_ext.scale", "extension.my_ext.scale"),
        ("triton.add_kernel", "triton.add_kernel"),
        ("cupy.copy_", "cupy.copy_"),
        ("inductor.cpp_fused_add_mul_12", "inductor.cpp_fused_add_mul"),
        ("", ""),
    ],
)
def test_overload_out_and_underscore_do_not_count(text, folded):
    assert fold_operator(text) == folded


def test_bare_operator_keeps_the_underscore():
    assert bare_operator("aten.copy_.default") == "copy_"
    assert bare_operator("kernel") == "kernel"


def test_what_the_dispatcher_does_not_see_is_no_operator_of_torch_that_is_called_alike():
    assert bare_operator("triton.copy_") == "triton.copy_"
    assert bare_operator("extension.my_ext.zero_") == "extension.my_ext.zero_"


def test_squash_removes_all_white_space():
    assert squash("f(x,\n   y)") == "f(x,y)"


@pytest.mark.parametrize(
    ("text", "shape"),
    [("", ()), ("4,8", (4, 8)), ("0,3", (0, 3)), ("4,,8", None), ("x", None), ("-1", None), ("1" * 30, None), (",".join(["1"] * 65), None)],
)
def test_a_shape_is_sizes_or_nothing(text, shape):
    assert parse_shape(text) == shape


def test_element_counts_beyond_memory_are_unknown():
    assert element_count((2, 3)) == 6
    assert element_count(()) == 1
    assert element_count(None) == -1
    assert element_count((1 << 40, 1 << 40)) == -1
    assert element_count((1 << 40, 0, 1 << 40)) == 0


def test_numbers_are_stable_and_shared():
    vocabulary = Vocabulary()
    assert vocabulary.number("") == NO_TEXT
    first = vocabulary.numbers(["a", "b", "a"])
    assert first.tolist() == [first[0], first[1], first[0]]
    assert vocabulary.texts[first[1]] == "b"
    assert vocabulary.folded(vocabulary.number("aten.add_.Tensor")) == vocabulary.number("add")


def test_layouts_are_permutations_without_ones():
    vocabulary = Vocabulary()
    shapes = vocabulary.numbers(["4,8", "8,4", "1,4,8", "4,9", "broken"])
    classes, orders = vocabulary.layout_class(shapes), vocabulary.layout_order(shapes)
    assert classes[0] == classes[1] == classes[2] != classes[3]
    assert orders[0] == orders[2] != orders[1]
    assert classes[4] not in classes[:4].tolist() and orders[4] not in orders[:4].tolist()
    assert vocabulary.numel(shapes).tolist() == [32, 32, 32, 36, -1]


def test_properties_of_texts_added_later_are_found():
    vocabulary = Vocabulary()
    vocabulary.numel(vocabulary.numbers(["2"]))
    late = vocabulary.numbers([str(size) for size in range(50)])
    assert vocabulary.numel(late).tolist() == list(range(50))
    assert np.array_equal(vocabulary.folded_all(late), late)
