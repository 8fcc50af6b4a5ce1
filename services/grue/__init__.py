"""GRUE, RL4LMs' benchmark (Ramamurthy et al. 2023): which runs it is, what they found, how that is shown."""
