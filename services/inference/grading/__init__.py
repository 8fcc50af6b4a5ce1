"""Rewards and metrics used outside of training: over files, or over HTTP."""
