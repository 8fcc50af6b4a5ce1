"""Memory of a run: a model of it, the memory of this machine, and settings that fit GPUs."""
