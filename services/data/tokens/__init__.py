"""Tokens of prompts and responses."""
