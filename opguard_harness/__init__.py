"""OpGuard harness: the agent's and the engineer's side of OpGuard. Never imports torch.

It starts trainings in child processes, reads the traces they leave and answers. Importing this package imports
nothing; `opguard_harness.__main__` is the console script.
"""
