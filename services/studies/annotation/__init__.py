"""Annotate a data set with rewards, reference log-probabilities and values."""
