"""Words, sentences and references, and counts in them, without models."""
