"""Secrets: the values that a process knows, and guards that hide them in texts and output."""
