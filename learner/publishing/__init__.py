"""Publication of new weights to the rollout workers."""
