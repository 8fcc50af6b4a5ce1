"""What Hydra composes. A file holds only what differs from the defaults of the settings classes."""
