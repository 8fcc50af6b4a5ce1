"""Training runs from start to end: one, a sweep, the demo."""
