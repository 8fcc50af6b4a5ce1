"""Screens, short numbers, progress, Ctrl-C."""
