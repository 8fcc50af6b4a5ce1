"""Checks before a run starts anything: machine, memory, model, data, placement."""
