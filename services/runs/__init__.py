"""Folders and checkpoints of runs, trackers, diagnosis, reports and stop rules."""
