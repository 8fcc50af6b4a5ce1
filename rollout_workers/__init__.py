"""Turn prompts into rollouts: engines, the worker's loop, and the fleet that replaces lost workers."""
