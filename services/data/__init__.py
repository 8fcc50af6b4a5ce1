"""Tasks, tokens, annotated data sets, and tools that models call."""
