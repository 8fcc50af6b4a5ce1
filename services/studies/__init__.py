"""Studies of runs: benchmarks, comparisons, judges, ratings, annotation, RL4LMs' files."""
