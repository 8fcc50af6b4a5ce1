"""Conditions that every process of a run shares: folder, disk, memory, waits, restarts, timeline."""
