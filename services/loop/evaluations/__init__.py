"""Evaluations on held-out prompts, and the baseline players beside them."""
