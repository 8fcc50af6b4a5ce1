"""Teachers of a run: contexts for self-distillation, and scores from teachers on servers."""
