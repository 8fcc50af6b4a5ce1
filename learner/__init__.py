"""Turn rollouts into new weights: actor-critic models, algorithms, batching, checkpoints, publishing."""
