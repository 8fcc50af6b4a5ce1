"""Unit tests and the program that they call, each in a process of its own; only plain data pass between."""
