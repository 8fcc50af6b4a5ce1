"""Grader models, loaded once for each replica, batched by length, on a GPU if possible."""
