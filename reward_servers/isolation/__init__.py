"""Separate processes for single samples, with limits enforced by the kernel."""
