"""Edits that change nothing of what a program computes, by kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.variants.edits import files, loops, naming, shape, statements, text
from tests.variants.program import Inapplicable, Program

Edit = Callable[[Program, np.random.Generator], None]

SINGLE: dict[str, Edit] = {
    "comments": text.comments,
    "annotations": text.annotate,
    "dead-code": text.dead,
    "locals-renamed": naming.locals_renamed,
    "functions-renamed": naming.functions_renamed,
    "attributes-renamed": naming.attributes_renamed,
    "definitions-moved": files.moved,
    "expressions-extracted": files.extracted,
    "imports-moved": files.reimported,
    "layers-reordered": files.constructed,
    "statements-swapped": statements.swap,
    "observations": statements.observe,
    "temporaries": statements.split,
    "contexts": statements.wrap,
    "loops-rewritten": loops.counted,
    "loops-unrolled": loops.unrolled,
    "one-more-step": loops.one_more,
    "decorated": shape.decorated,
    "script-in-function": shape.in_function,
}


def mixed(program: Program, rng: np.random.Generator) -> None:
    """Three to five edits of other kinds, one after the other."""
    kinds = [kind for kind in SINGLE if kind != "one-more-step"]
    wanted, done = int(rng.integers(3, 6)), 0
    for index in rng.permutation(len(kinds)):
        try:
            SINGLE[kinds[index]](program, rng)
        except Inapplicable:
            continue
        done += 1
        if done == wanted:
            return
    if not done:
        raise Inapplicable("no edit applies")


EDITS: dict[str, Edit] = {**SINGLE, "mixed": mixed}
