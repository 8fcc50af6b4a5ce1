"""Chat models that score texts, behind an OpenAI-style address."""
