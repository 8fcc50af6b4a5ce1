"""Words, sentences, references and their counts, without models."""
