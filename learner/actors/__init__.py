"""The learner as Ray actors: its process, its group of ranks, and calls to it from outside."""
