"""Evaluation of a model on held-out prompts, outside of training."""
