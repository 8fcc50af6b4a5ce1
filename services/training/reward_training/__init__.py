"""Training of a reward model."""
