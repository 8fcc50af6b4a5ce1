"""Metrics of an iteration: rollouts, parts of a mixture, several texts per prompt, signs of trouble."""
