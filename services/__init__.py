"""Services: commands, the training loop, evaluation, tracking and tasks."""
