"""Checks before anything is started: machine, memory, model, data, placement."""
