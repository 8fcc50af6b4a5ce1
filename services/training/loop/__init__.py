"""The training loop and its evaluations."""
