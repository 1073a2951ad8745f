"""Checks of a training Python, of this installation and of the machine; nothing here imports torch."""
