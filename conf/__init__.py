"""The configurations that Hydra composes; a file holds only what differs from the settings classes."""
