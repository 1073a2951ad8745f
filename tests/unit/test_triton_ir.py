"""What a Triton kernel writes, read from TTIR texts that Triton 3.6 made of small kernels (tests/fixtures/ttir)."""

from pathlib import Path

import pytest

from opguard_core.engines.triton_ir import writes_of

TEXTS = Path(__file__).parents[1] / "fixtures" / "ttir"
WRITTEN = {
    "add": {"out_ptr"},
    # In a loop, added to; and where a pointer ends up that a branch chooses, which is never where the loop began.
    "carried": {"acc_ptr", "y_ptr", "z_ptr"},
    "calls": {"x_ptr", "z_ptr", "y_ptr"},  # by functions that are not inlined, and through the pointers that they return
    "descriptors": {"b_ptr"},
    "early": {"x_ptr", "y_ptr"},  # of a choice between two, behind a return
    "lock": {"lock_ptr", "y_ptr"},
    "pure_assembly": {"y_ptr"},
    "walking": {"x_ptr", "y_ptr"},  # what a while loop goes on with
}


def text_of(name):
    return (TEXTS / f"{name}.mlir").read_text()


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_pointers_are_followed_to_what_is_written(name):
    found = writes_of(text_of(name))
    assert {found.pointers[at] for at in found.written} == WRITTEN[name]


@pytest.mark.parametrize("name", ["table", "assembly"])
def test_a_pointer_out_of_memory_and_assembly_with_effects_make_everything_unknown(name):
    assert writes_of(text_of(name)) is None


HEAD = "module {\n  tt.func public @k(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32>, %arg2: i32, %arg3: i64) {\n"
NUMBERED = """    %0 = tt.ptr_to_int %arg0 : p
    %1 = arith.addi %0, %any : i64
    %2 = tt.int_to_ptr %1 : p
    tt.store %2, %arg2 : p
"""
TAIL = "    tt.return\n  }\n}\n"


def written(body):
    found = writes_of(HEAD + body + TAIL)
    return found and sorted(found.pointers[at] for at in found.written)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", []),
        ("    tt.store %arg1, %arg2 : !tt.ptr<f32>\n", ["arg1"]),
        ("    %0 = tt.atomic_cas acq_rel, gpu, %arg0, %arg2, %arg2 : (!tt.ptr<f32>, i32, i32) -> i32\n", ["arg0"]),
        # Older spellings: descriptors of the experimental kind, pointers to blocks, pointers as numbers.
        ("    %0 = tt.reinterpret_tensor_descriptor %arg0 : a\n    tt.experimental_descriptor_store %0[%arg2], %arg2 : b\n", ["arg0"]),
        ("    %0 = tt.make_tensor_ptr %arg1, [%arg2] : p\n    %1 = tt.advance %0, [%arg2] : p\n    tt.store %1, %arg2 : p\n", ["arg1"]),
        (NUMBERED.replace("%any", "%arg2"), ["arg0"]),
        (NUMBERED.replace("%any", "%arg3"), None),  # which of the two is the address?
        ("    cf.br ^bb1(%arg1 : !tt.ptr<f32>)\n  ^bb1(%0: !tt.ptr<f32>):  // pred: ^bb0\n    tt.store %0, %arg2 : p\n", ["arg1"]),
        ("    %0 = tt.load %arg0 : p\n    %1 = tt.addptr %arg1, %0 : p, i32\n    tt.store %1, %0 : p\n", ["arg1"]),  # a scatter
        ("    tt.store %nobody, %arg2 : p\n", None),
        ("    tt.call @missing(%arg0) : (p) -> ()\n", None),
        ("    some.operation %arg0 : p\n", None),
        ("    %0 = tt.int_to_ptr %arg2 : i32 -> p\n    tt.store %0, %arg2 : p\n", None),  # an address given as a number
        ("    some.operation %arg2 : i32\n", []),
        ("    %0 = tt.extern_elementwise %arg0 {libname = \"\", pure = false} : p\n", None),
        ("    tt.print \"%arg0 \" {hex = false} : %arg2 : i32\n", []),
    ],
)  # fmt: skip
def test_each_way_to_write_and_each_way_not_to_know(body, expected):
    assert written(body) == expected


BROKEN = ["", "not an IR", "module {\n  tt.func broken\n}\n", "}\n}\n", "^bb0(\n", "%x = \n", "module {\n  tt.store %x\n"]


@pytest.mark.parametrize("text", BROKEN)
def test_no_text_stops_us(text):
    assert writes_of(text) is None


def test_a_text_that_is_cut_off_says_nothing():
    text = text_of("carried")
    assert all(writes_of(text[:end]) is None for end in range(0, text.rindex("tt.return"), 7))
