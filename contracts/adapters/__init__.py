"""Adapters as models: the contents of a peft folder, their possible uses, and the merge into a base."""
