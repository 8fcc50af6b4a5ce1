"""Trainer of a training service: named models whose gradients add up until a client asks for a step."""
