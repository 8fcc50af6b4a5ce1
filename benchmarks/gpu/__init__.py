"""Benchmarks of one machine with GPUs: `make gpu` runs them, and writes docs/results/gpu.md.

Each part is a module with a separate process. Without a GPU, each part rehearses with a small model on the
CPU. A rehearsal's figures say nothing about GPUs, and no page shows them.
"""
