"""Turn prompts into rollouts: generation engines, the worker's loop, the fleet that replaces lost workers."""
