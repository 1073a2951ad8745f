"""Faults injected live into real trainings at random operators, below or beside capture, which is not told of them.

programs  the trainings and the pairs of them
memory    raw bytes of a tensor
faults    what a fault is, and where one can be put
below     the injector: sits between capture and the kernels, and in front of capture
witness   what a run computed, so that "absorbed" can be proved
child     one run in forked processes
truth     what an answer should have said; the mark
cuts      traces that stop early
campaign  many faults, resumable
table     the numbers as Markdown
"""
