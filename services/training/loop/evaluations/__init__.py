"""Evaluations on held-out prompts, by the model and by baseline players."""
