"""Annotated data sets on disk: parts, rows, rewards and task."""
