"""Ray's start, and its jobs."""
