"""Plan a run: what it would do, need and read."""
