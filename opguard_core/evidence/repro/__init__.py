"""A kept boundary as a program of one file that needs torch alone."""

from opguard_core.evidence.repro.bundle import DATA, SCRIPT, Captured, write_repro

__all__ = ["DATA", "SCRIPT", "Captured", "write_repro"]
