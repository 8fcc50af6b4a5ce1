"""Rollout workers as a fleet: places, starts, calls, failures and replacements."""
