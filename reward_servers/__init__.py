"""Rewards, metrics and their servers, which turn finished texts into scores."""
