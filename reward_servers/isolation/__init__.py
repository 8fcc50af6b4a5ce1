"""Processes of their own for single samples, with limits that the kernel keeps."""
