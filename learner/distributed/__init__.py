"""Ranks of one learner: their meeting, their devices, and the shards of the models."""
