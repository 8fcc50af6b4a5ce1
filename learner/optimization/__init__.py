"""Optimisers, number formats, and schedules of learning rates, β and entropy coefficients."""
