"""Services that a person starts: commands, the training loop, evaluation, tracking, and the tasks."""
