"""Addresses, tokens and groups of processes: what every service of ours shares."""
