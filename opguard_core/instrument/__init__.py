"""Calls of a program, rewritten in memory so that those that torch's dispatcher cannot see can be observed. Standard library only."""
