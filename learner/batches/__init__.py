"""Batches: rollouts as padded or packed tensors, split over micro-batches and ranks."""
