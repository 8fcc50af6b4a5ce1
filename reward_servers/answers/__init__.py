"""Find the answer in a response or a reference."""
