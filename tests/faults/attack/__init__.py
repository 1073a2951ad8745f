"""Attacks on the reader and the aligner: millions of inputs that nobody wrote by hand, and what must hold for each.

    python -m tests.faults.attack --inputs 1000000

Whatever lies in a trace folder, reading and judging it ends in rows that are right, in one clear error, or in a verdict that
is allowed; never in a crash, a hang, or memory without bound.
"""
