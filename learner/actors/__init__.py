"""The learner as Ray actors: its process, its group of ranks, and calls from outside."""
