"""Memory of a run: its model, its measure on this machine, and settings that fit it onto GPUs."""
