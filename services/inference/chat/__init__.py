"""Conversations with a model in a terminal or a browser."""
