"""The command `push`: a run's model with a card about it, in a folder or on the Hugging Face hub."""
