"""Model files, read without torch, and tokenizers."""
