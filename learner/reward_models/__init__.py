"""Training of reward models on labelled texts or pairs."""
