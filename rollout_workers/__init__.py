"""Turns prompts into rollouts: generation engines, the worker's loop, the fleet that survives losing one."""
