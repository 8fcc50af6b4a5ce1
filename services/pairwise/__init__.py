"""Which of two texts a chat model finds better: asked in both orders, counted and tested."""
