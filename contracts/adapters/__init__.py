"""Adapters as models: what a peft folder holds, what can be done with it, and its merge into its base."""
