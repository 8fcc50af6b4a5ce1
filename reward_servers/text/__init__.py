"""Words, sentences, references; and what is counted in them: no models."""
