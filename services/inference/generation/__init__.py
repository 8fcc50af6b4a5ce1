"""Text generation with a finished run's model, or any other, without Ray."""
