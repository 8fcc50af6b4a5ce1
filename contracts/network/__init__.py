"""Addresses, tokens and groups of processes, shared by all of our services."""
