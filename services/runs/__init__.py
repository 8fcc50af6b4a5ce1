"""Runs on disk: folder, checkpoints and mirror."""
