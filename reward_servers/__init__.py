"""Rewards, metrics and the servers that run them: they turn finished texts into scores."""
