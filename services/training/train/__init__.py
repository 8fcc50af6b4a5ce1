"""Training from start to end: a single run, a sweep, the demos."""
