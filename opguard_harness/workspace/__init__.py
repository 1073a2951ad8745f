"""Runs and comparisons on disk: finding them, making new ones, reading what they hold."""
