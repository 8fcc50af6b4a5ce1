"""Benchmarks of one machine with GPUs: `make gpu` runs them, and writes docs/results/gpu.md.

Each part is a module with a process of its own. Without a GPU, each runs a small model on the CPU: a
rehearsal, whose figures say nothing of GPUs, and which no page shows.
"""
